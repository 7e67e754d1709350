#include "runner/gguf/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "runner/gguf/byte_reader.h"
#include "runner/gguf/gguf_parse.h"
#include "runner/gguf/mapped_file.h"

namespace longdecode::runner {

struct GgufFile::Impl {
  std::string path;
  std::optional<MappedFile> mapping;
  std::vector<uint8_t> owned;  // instead of the mapping
  std::span<const uint8_t> bytes;
  GgufContents contents;

  Status parse() {
    auto parsed = parse_gguf(bytes);
    if (!parsed.ok()) {
      return make_status(parsed.status().code(), "'{}': {}", path, parsed.status().message());
    }
    contents = std::move(parsed).value();
    return Status();
  }
};

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

Result<GgufFile> GgufFile::open(const std::string& path) {
  LD_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::open(path));
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->mapping = std::move(mapping);
  impl->bytes = impl->mapping->bytes();
  LD_RETURN_IF_ERROR(impl->parse());
  return GgufFile(std::move(impl));
}

Result<GgufFile> GgufFile::from_bytes(std::vector<uint8_t> bytes, const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->path = name;
  impl->owned = std::move(bytes);
  impl->bytes = impl->owned;
  LD_RETURN_IF_ERROR(impl->parse());
  return GgufFile(std::move(impl));
}

const std::string& GgufFile::path() const { return impl_->path; }
std::span<const uint8_t> GgufFile::bytes() const { return impl_->bytes; }
uint32_t GgufFile::version() const { return impl_->contents.version; }
int64_t GgufFile::num_bytes() const { return static_cast<int64_t>(impl_->bytes.size()); }
const std::vector<std::string_view>& GgufFile::keys() const { return impl_->contents.keys; }
const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->contents.tensors; }

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = impl_->contents.tensor_idx.find(name);
  return it == impl_->contents.tensor_idx.end() ? nullptr : &impl_->contents.tensors[it->second];
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = impl_->contents.values.find(key);
  return it == impl_->contents.values.end() ? nullptr : &it->second;
}

namespace {

Status wrong_type(const GgufFile& file, std::string_view key, const GgufValue& value,
                  const char* wanted) {
  if (value.type == GgufType::kArray) {
    return invalid_argument("'{}': key '{}' is an array of {}; {} is needed", file.path(),
                            printable(key), gguf_type_name(value.element_type), wanted);
  }
  return invalid_argument("'{}': key '{}' has type {}; {} is needed", file.path(), printable(key),
                          gguf_type_name(value.type), wanted);
}

template <typename T>
T take(ByteReader* reader) {
  T value = {};
  reader->read(&value);  // the parser has checked that the bytes are there
  return value;
}

// One integer of any type; nullopt for other types. A uint64 above int64's range becomes its
// maximum, which no caller's range includes.
std::optional<int64_t> take_int(GgufType type, ByteReader* reader) {
  switch (type) {
    case GgufType::kUint8:
      return take<uint8_t>(reader);
    case GgufType::kInt8:
      return take<int8_t>(reader);
    case GgufType::kUint16:
      return take<uint16_t>(reader);
    case GgufType::kInt16:
      return take<int16_t>(reader);
    case GgufType::kUint32:
      return take<uint32_t>(reader);
    case GgufType::kInt32:
      return take<int32_t>(reader);
    case GgufType::kInt64:
      return take<int64_t>(reader);
    case GgufType::kUint64: {
      constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
      return static_cast<int64_t>(std::min(take<uint64_t>(reader), kMax));
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> take_float(GgufType type, ByteReader* reader) {
  if (type == GgufType::kFloat32) return take<float>(reader);
  if (type == GgufType::kFloat64) return take<double>(reader);
  return std::nullopt;
}

}  // namespace

Result<const GgufValue*> GgufFile::require(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return not_found("'{}' has no key '{}'", path(), printable(key));
  return value;
}

Result<int64_t> GgufFile::get_int(std::string_view key, int64_t min, int64_t max) const {
  LD_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  ByteReader reader(value->bytes);
  const std::optional<int64_t> number = take_int(value->type, &reader);
  if (!number) return wrong_type(*this, key, *value, "an integer");
  if (*number < min || *number > max) {
    return invalid_argument("'{}': key '{}' is {}; {} to {} is allowed", path(), printable(key),
                            *number, min, max);
  }
  return *number;
}

Result<double> GgufFile::get_float(std::string_view key) const {
  LD_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  ByteReader reader(value->bytes);
  const std::optional<double> number = take_float(value->type, &reader);
  if (!number) return wrong_type(*this, key, *value, "float32 or float64");
  if (!std::isfinite(*number)) {
    return invalid_argument("'{}': key '{}' is {}; a finite number is needed", path(),
                            printable(key), *number);
  }
  return *number;
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  LD_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->type != GgufType::kBool) return wrong_type(*this, key, *value, "bool");
  return value->bytes[0] != 0;
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  LD_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->type != GgufType::kString) return wrong_type(*this, key, *value, "string");
  std::string_view text;
  ByteReader(value->bytes).read_string(&text);
  return text;
}

Result<int64_t> GgufFile::get_int_or(std::string_view key, int64_t min, int64_t max,
                                     int64_t fallback) const {
  return has(key) ? get_int(key, min, max) : Result<int64_t>(fallback);
}
Result<double> GgufFile::get_float_or(std::string_view key, double fallback) const {
  return has(key) ? get_float(key) : Result<double>(fallback);
}
Result<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : Result<bool>(fallback);
}
Result<std::string_view> GgufFile::get_string_or(std::string_view key,
                                                 std::string_view fallback) const {
  return has(key) ? get_string(key) : Result<std::string_view>(fallback);
}

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  LD_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return wrong_type(*this, key, *value, "an array of strings");
  }
  ByteReader reader(value->bytes);
  std::vector<std::string_view> texts(value->count);
  for (std::string_view& text : texts) reader.read_string(&text);
  return texts;
}

Result<std::vector<int64_t>> GgufFile::get_ints(std::string_view key) const {
  LD_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  ByteReader reader(value->bytes);
  std::vector<int64_t> numbers;
  if (value->type != GgufType::kArray)
    return wrong_type(*this, key, *value, "an array of integers");
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = take_int(value->element_type, &reader);
    if (!number) return wrong_type(*this, key, *value, "an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
  LD_ASSIGN_OR_RETURN(const GgufValue* value, require(key));
  ByteReader reader(value->bytes);
  std::vector<float> numbers;
  if (value->type != GgufType::kArray) return wrong_type(*this, key, *value, "an array of floats");
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<double> number = take_float(value->element_type, &reader);
    if (!number) return wrong_type(*this, key, *value, "an array of floats");
    numbers.push_back(static_cast<float>(*number));
  }
  return numbers;
}

const char* gguf_type_name(GgufType type) {
  static constexpr const char* kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                           "int32",  "float32", "bool",   "string", "array",
                                           "uint64", "int64",   "float64"};
  const auto id = static_cast<uint32_t>(type);
  return id < std::size(kNames) ? kNames[id] : "unknown";
}

std::string GgufTensor::shape_string() const {
  std::string text = "[";
  for (int32_t i = 0; i < rank; ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  std::string shown;
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += c;
    }
  }
  if (text.size() > kMaxShown) shown += "...";
  return shown;
}

}  // namespace longdecode::runner
