// Writes a safetensors file piece by piece: 8 bytes of header length, a JSON header, raw data.
#ifndef LONGDECODE_TOOLS_SAFETENSORS_H_
#define LONGDECODE_TOOLS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "longdecode/status.h"
#include "longdecode/types.h"

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
  SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  // Bytes [offset_bytes, offset_bytes + num_bytes) of tensor tensor_idx; every byte of every tensor
  // is the caller's to write, in any order.
  Status write(size_t tensor_idx, int64_t offset_bytes, const void* data, int64_t num_bytes);
  Status commit();

 private:
  struct FileClose {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  SafetensorsWriter() = default;

  std::string path_;
  std::string temporary_path_;
  std::unique_ptr<std::FILE, FileClose> file_;  // null after commit() and in a moved-from object
  std::vector<int64_t> offsets_;                // [num_tensors] bytes from the start of the file
};

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_SAFETENSORS_H_
