#include "runner/gguf/ggml_type.h"

#include <iterator>

namespace longdecode::runner {
namespace {

// Indexed by id. Withdrawn ids (0 weights) have no known size any more.
constexpr GgmlTypeInfo kTypes[] = {
    {"F32", 1, 4, true},         {"F16", 1, 2, true},         {"Q4_0", 32, 18, true},
    {"Q4_1", 32, 20, true},      {"Q4_2", 0, 0, false},       {"Q4_3", 0, 0, false},
    {"Q5_0", 32, 22, false},     {"Q5_1", 32, 24, false},     {"Q8_0", 32, 34, true},
    {"Q8_1", 32, 36, false},     {"Q2_K", 256, 84, false},    {"Q3_K", 256, 110, false},
    {"Q4_K", 256, 144, true},    {"Q5_K", 256, 176, true},    {"Q6_K", 256, 210, true},
    {"Q8_K", 256, 292, false},   {"IQ2_XXS", 256, 66, false}, {"IQ2_XS", 256, 74, false},
    {"IQ3_XXS", 256, 98, false}, {"IQ1_S", 256, 50, false},   {"IQ4_NL", 32, 18, false},
    {"IQ3_S", 256, 110, false},  {"IQ2_S", 256, 82, false},   {"IQ4_XS", 256, 136, false},
    {"I8", 1, 1, false},         {"I16", 1, 2, false},        {"I32", 1, 4, false},
    {"I64", 1, 8, false},        {"F64", 1, 8, false},        {"IQ1_M", 256, 56, false},
    {"BF16", 1, 2, true},        {"Q4_0_4_4", 0, 0, false},   {"Q4_0_4_8", 0, 0, false},
    {"Q4_0_8_8", 0, 0, false},   {"TQ1_0", 256, 54, false},   {"TQ2_0", 256, 66, false},
    {"IQ4_NL_4_4", 0, 0, false}, {"IQ4_NL_4_8", 0, 0, false}, {"IQ4_NL_8_8", 0, 0, false},
    {"MXFP4", 32, 17, false},
};

}  // namespace

const GgmlTypeInfo* find_ggml_type(uint32_t id) {
  return id < std::size(kTypes) ? &kTypes[id] : nullptr;
}

std::string supported_ggml_types() {
  std::string names;
  for (const GgmlTypeInfo& type : kTypes) {
    if (!type.supported) continue;
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace longdecode::runner
