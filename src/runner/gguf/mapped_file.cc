#include "runner/gguf/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace longdecode::runner {
namespace {

struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO without a writer would wait for ever. No effect on regular files.
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return not_found("cannot open '{}': {}", path, std::strerror(errno));
  struct stat info = {};
  if (::fstat(file.fd, &info) != 0) {
    return not_found("cannot stat '{}': {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument("'{}' is {}; a regular file is needed", path, kind_of(info.st_mode));
  }
  if (info.st_size == 0) return data_loss("'{}' is empty", path);
  const auto num_bytes = static_cast<size_t>(info.st_size);
  void* memory = ::mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, file.fd, 0);
  if (memory == MAP_FAILED) {
    return out_of_memory("cannot map '{}' ({} bytes): {}", path, num_bytes, std::strerror(errno));
  }
  return MappedFile(memory, num_bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (memory_ != nullptr) ::munmap(memory_, num_bytes_);
}

}  // namespace longdecode::runner
