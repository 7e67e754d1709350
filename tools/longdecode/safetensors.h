// Writes a safetensors file piece by piece: 8 bytes of header length, a JSON header, raw data.
#ifndef LONGDECODE_TOOLS_SAFETENSORS_H_
#define LONGDECODE_TOOLS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "longdecode/status.h"
#include "longdecode/types.h"
#include "runner/output_file.h"

namespace longdecode::tool {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t num_bytes() const;
};

// The file appears, whole, at commit(); without it nothing is left.
class SafetensorsWriter {
 public:
  // Refuses a path that cannot be written. Existing regular files are replaced at commit().
  static Result<SafetensorsWriter> create(const std::string& path,
                                          const std::vector<TensorEntry>& tensors,
                                          const std::map<std::string, std::string>& metadata);

  // Bytes [offset_bytes, offset_bytes + num_bytes) of tensor tensor_idx; every byte of every tensor
  // is the caller's to write, in any order.
  Status write(size_t tensor_idx, int64_t offset_bytes, const void* data, int64_t num_bytes);
  Status commit();

 private:
  SafetensorsWriter(std::string path, runner::OutputFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  Status write_at(int64_t offset_bytes, const void* data, size_t num_bytes);

  std::string path_;
  runner::OutputFile file_;
  std::vector<int64_t> offsets_;  // [num_tensors] bytes from the start of the file
};

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_SAFETENSORS_H_
