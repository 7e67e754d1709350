// Writes small GGUF files in memory, well-formed unless asked otherwise.
#ifndef LONGDECODE_TESTS_SUPPORT_GGUF_WRITER_H_
#define LONGDECODE_TESTS_SUPPORT_GGUF_WRITER_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runner/gguf/gguf_file.h"

namespace longdecode::tests {

class ByteWriter {
 public:
  template <typename T>
  ByteWriter& put(T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
    return *this;
  }
  ByteWriter& text(const std::string& value) {
    put(static_cast<uint64_t>(value.size()));
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  ByteWriter& raw(const std::vector<uint8_t>& value) {
    bytes_.insert(bytes_.end(), value.begin(), value.end());
    return *this;
  }
  ByteWriter& align(size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(0);
    return *this;
  }
  size_t size() const { return bytes_.size(); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

class GgufWriter {
 public:
  using Type = runner::GgufType;

  GgufWriter& add_string(const std::string& key, const std::string& value) {
    entry(key, Type::kString).text(value);
    return *this;
  }
  GgufWriter& add_u32(const std::string& key, uint32_t value) {
    entry(key, Type::kUint32).put(value);
    return *this;
  }
  GgufWriter& add_f32(const std::string& key, float value) {
    entry(key, Type::kFloat32).put(value);
    return *this;
  }
  GgufWriter& add_strings(const std::string& key, const std::vector<std::string>& values) {
    entry(key, Type::kArray).put(Type::kString).put(static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) values_.text(value);
    return *this;
  }
  template <typename T>
  GgufWriter& add_array(const std::string& key, Type element_type, const std::vector<T>& values) {
    entry(key, Type::kArray).put(element_type).put(static_cast<uint64_t>(values.size()));
    for (const T& value : values) values_.put(value);
    return *this;
  }
  // A value of any type, its bytes as given.
  GgufWriter& add_raw(const std::string& key, uint32_t type, const std::vector<uint8_t>& bytes) {
    entry(key, static_cast<Type>(type)).raw(bytes);
    return *this;
  }
  template <typename T>
  GgufWriter& add_scalar(const std::string& key, Type type, T value) {
    entry(key, type).put(value);
    return *this;
  }

  // shape: the contiguous dimension first. The offset is filled in.
  GgufWriter& add_tensor(const std::string& name, uint32_t type_id, std::vector<uint64_t> shape,
                         const std::vector<uint8_t>& data) {
    data_.align(alignment_);
    tensors_.push_back({name, type_id, std::move(shape), data_.size()});
    data_.raw(data);
    return *this;
  }
  GgufWriter& set_last_offset(uint64_t offset) {
    tensors_.back().offset = offset;
    return *this;
  }
  GgufWriter& set_alignment(uint32_t alignment) {
    alignment_ = alignment;
    return add_u32("general.alignment", alignment);
  }
  GgufWriter& set_version(uint32_t version) {
    version_ = version;
    return *this;
  }
  // Wrong counts on purpose.
  GgufWriter& set_counts(uint64_t num_tensors, uint64_t num_values) {
    lie_ = true;
    num_tensors_ = num_tensors;
    num_values_claimed_ = num_values;
    return *this;
  }

  std::vector<uint8_t> finish() const {
    ByteWriter file;
    file.put(uint32_t{0x46554747}).put(version_);
    file.put(lie_ ? num_tensors_ : uint64_t{tensors_.size()});
    file.put(lie_ ? num_values_claimed_ : num_values_);
    file.raw(values_.bytes());
    for (const Tensor& tensor : tensors_) {
      file.text(tensor.name).put(static_cast<uint32_t>(tensor.shape.size()));
      for (const uint64_t size : tensor.shape) file.put(size);
      file.put(tensor.type_id).put(tensor.offset);
    }
    file.align(alignment_).raw(data_.bytes());
    return file.bytes();
  }

 private:
  struct Tensor {
    std::string name;
    uint32_t type_id;
    std::vector<uint64_t> shape;
    uint64_t offset;
  };
  ByteWriter& entry(const std::string& key, Type type) {
    ++num_values_;
    return values_.text(key).put(type);
  }

  uint32_t version_ = 3;
  uint32_t alignment_ = 32;
  uint64_t num_values_ = 0;
  bool lie_ = false;
  uint64_t num_tensors_ = 0;
  uint64_t num_values_claimed_ = 0;
  ByteWriter values_;
  std::vector<Tensor> tensors_;
  ByteWriter data_;
};

}  // namespace longdecode::tests

#endif  // LONGDECODE_TESTS_SUPPORT_GGUF_WRITER_H_
