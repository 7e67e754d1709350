// Tensor element types of GGUF files: ids, names and block sizes as ggml publishes them.
#ifndef LONGDECODE_RUNNER_GGUF_GGML_TYPE_H_
#define LONGDECODE_RUNNER_GGUF_GGML_TYPE_H_

#include <cstdint>
#include <string>

namespace longdecode::runner {

// The types that this runner computes with. The value is the id in the file.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct GgmlTypeInfo {
  const char* name;       // as in ggml, e.g. "Q4_1"
  int32_t block_weights;  // weights per block; 0 for a type that ggml has withdrawn
  int32_t block_bytes;
  bool supported;  // a GgmlType
};

// nullptr for an id that ggml has never used (as far as this table knows).
const GgmlTypeInfo* find_ggml_type(uint32_t id);

inline const GgmlTypeInfo& ggml_type_info(GgmlType type) {
  return *find_ggml_type(static_cast<uint32_t>(type));
}

// "F32, F16, Q4_0, ..." for error messages.
std::string supported_ggml_types();

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GGUF_GGML_TYPE_H_
