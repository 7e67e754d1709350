// A regular file mapped read-only.
#ifndef LONGDECODE_RUNNER_GGUF_MAPPED_FILE_H_
#define LONGDECODE_RUNNER_GGUF_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "longdecode/status.h"

namespace longdecode::runner {

class MappedFile {
 public:
  // kNotFound when it cannot be opened, kInvalidArgument for anything but a regular file,
  // kDataLoss for an empty one. A file that shrinks while it is mapped is not survivable (the
  // system raises SIGBUS), as with any mapped file.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const {
    return {static_cast<const uint8_t*>(memory_), num_bytes_};
  }

 private:
  MappedFile(void* memory, size_t num_bytes) : memory_(memory), num_bytes_(num_bytes) {}
  void* memory_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GGUF_MAPPED_FILE_H_
