// Reader of GGUF files (versions 2 and 3, little-endian), memory-mapped. Everything in the file is
// untrusted: every count, length, offset and dimension is checked against the file before use.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#ifndef LONGDECODE_RUNNER_GGUF_GGUF_FILE_H_
#define LONGDECODE_RUNNER_GGUF_GGUF_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longdecode/status.h"
#include "runner/gguf/ggml_type.h"

namespace longdecode::runner {

// Ids of metadata value types, as in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
const char* gguf_type_name(GgufType type);

// A metadata value as it lies in the file, already checked to be complete.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array
  uint64_t count = 1;                        // elements of an array, else 1
  std::span<const uint8_t> bytes;            // the value, or the elements of an array
};

struct GgufTensor {
  std::string_view name;
  uint32_t type_id = 0;             // find_ggml_type knows it; it may be one that the runner lacks
  int32_t rank = 0;                 // 1..4
  int64_t shape[4] = {1, 1, 1, 1};  // as in the file: the contiguous dimension first
  std::span<const uint8_t> bytes;

  bool is(GgmlType type) const { return type_id == static_cast<uint32_t>(type); }
  const char* type_name() const { return find_ggml_type(type_id)->name; }
  int64_t num_elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  std::string shape_string() const;  // "[576, 49152]"
};

class GgufFile {
 public:
  // Maps and parses. The message names the path, the key or tensor at fault and what is wrong.
  static Result<GgufFile> open(const std::string& path);
  // The same for a file that is already in memory; `name` stands for the path in messages.
  static Result<GgufFile> from_bytes(std::vector<uint8_t> bytes, const std::string& name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const std::string& path() const;
  uint32_t version() const;
  int64_t num_bytes() const;
  std::span<const uint8_t> bytes() const;             // the whole file
  const std::vector<std::string_view>& keys() const;  // in the order of the file

  // --- Metadata. Views stay valid as long as the file object. ---
  // A missing key is kNotFound, a wrong type or a value out of range kInvalidArgument; the `_or`
  // forms give the fallback for a missing key only.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const GgufValue* find(std::string_view key) const;  // nullptr when there is none
  // Any integer type, within min..max.
  Result<int64_t> get_int(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> get_int_or(std::string_view key, int64_t min, int64_t max,
                             int64_t fallback) const;
  Result<double> get_float(std::string_view key) const;  // float32 or float64, finite
  Result<double> get_float_or(std::string_view key, double fallback) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;
  // Arrays: of strings, of any integer type, of float32 or float64.
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<int64_t>> get_ints(std::string_view key) const;
  Result<std::vector<float>> get_floats(std::string_view key) const;

  // --- Tensors ---
  const std::vector<GgufTensor>& tensors() const;
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr when there is none

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  Result<const GgufValue*> require(std::string_view key) const;
  std::unique_ptr<Impl> impl_;
};

// A name from a file for an error message: control characters escaped, long names cut.
std::string printable(std::string_view text);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GGUF_GGUF_FILE_H_
