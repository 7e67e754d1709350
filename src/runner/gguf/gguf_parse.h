// The parsing pass over a GGUF file's bytes.
#ifndef LONGDECODE_RUNNER_GGUF_GGUF_PARSE_H_
#define LONGDECODE_RUNNER_GGUF_GGUF_PARSE_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "longdecode/status.h"
#include "runner/gguf/gguf_file.h"

namespace longdecode::runner {

struct GgufContents {  // views into the bytes
  uint32_t version = 0;
  std::vector<std::string_view> keys;
  std::unordered_map<std::string_view, GgufValue> values;
  std::vector<GgufTensor> tensors;
  std::unordered_map<std::string_view, size_t> tensor_idx;
};

// Messages lack the path; the caller puts it in front.
Result<GgufContents> parse_gguf(std::span<const uint8_t> bytes);

// Bytes of one value of a fixed-size type; 0 for strings, arrays and unknown ids.
size_t gguf_scalar_bytes(GgufType type);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GGUF_GGUF_PARSE_H_
