// Reads the tensors of a safetensors file as fp32.
#ifndef LONGDECODE_TESTS_SUPPORT_SAFETENSORS_H_
#define LONGDECODE_TESTS_SUPPORT_SAFETENSORS_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/float_convert.h"

namespace longdecode::tests {

struct LoadedTensor {
  std::string dtype;  // F32 or F16
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Throws when the file is not a safetensors file whose tensors cover its data exactly.
inline std::map<std::string, LoadedTensor> load_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t header_bytes = 0;
  if (bytes.size() < 8) throw std::runtime_error(path + ": no header");
  std::memcpy(&header_bytes, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  const char* data = bytes.data() + 8 + header_bytes;
  const size_t data_bytes = bytes.size() - 8 - header_bytes;
  std::map<std::string, LoadedTensor> tensors;
  size_t covered = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    LoadedTensor tensor{entry.at("dtype"), entry.at("shape"), {}};
    const size_t begin = entry.at("data_offsets").at(0);
    const size_t end = entry.at("data_offsets").at(1);
    const size_t element = tensor.dtype == "F32" ? 4 : 2;
    size_t count = 1;
    for (const int64_t size : tensor.shape) count *= static_cast<size_t>(size);
    if (end - begin != count * element || end > data_bytes) {
      throw std::runtime_error(path + ": " + name + " does not fit its shape");
    }
    for (size_t i = 0; i < count; ++i) {
      float value = 0.0f;
      uint16_t half = 0;
      if (element == 4) std::memcpy(&value, data + begin + 4 * i, 4);
      if (element == 2) std::memcpy(&half, data + begin + 2 * i, 2);
      tensor.values.push_back(element == 4 ? value : f16_to_f32(half));
    }
    covered += end - begin;
    tensors.emplace(name, std::move(tensor));
  }
  if (covered != data_bytes) throw std::runtime_error(path + ": data without a tensor");
  return tensors;
}

}  // namespace longdecode::tests

#endif  // LONGDECODE_TESTS_SUPPORT_SAFETENSORS_H_
