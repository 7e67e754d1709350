// Bounds-checked little-endian reads, shared by the parser and the value getters.
#ifndef LONGDECODE_RUNNER_GGUF_BYTE_READER_H_
#define LONGDECODE_RUNNER_GGUF_BYTE_READER_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace longdecode::runner {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they lie");

class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  // False, without moving, when the bytes are not there.
  template <typename T>
  bool read(T* value) {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }
  bool read_bytes(uint64_t num_bytes, std::span<const uint8_t>* value) {
    if (remaining() < num_bytes) return false;
    *value = bytes_.subspan(position_, num_bytes);
    position_ += num_bytes;
    return true;
  }
  // A uint64 length and that many bytes.
  bool read_string(std::string_view* value) {
    const size_t start = position_;
    uint64_t length = 0;
    std::span<const uint8_t> text;
    if (!read(&length) || !read_bytes(length, &text)) {
      position_ = start;
      return false;
    }
    *value = {reinterpret_cast<const char*>(text.data()), text.size()};
    return true;
  }

 private:
  std::span<const uint8_t> bytes_;
  size_t position_ = 0;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GGUF_BYTE_READER_H_
