#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/float_convert.h"
#include "base/status_macros.h"
#include "bench_attention.h"
#include "json_input.h"
#include "runner/gguf/mapped_file.h"

namespace longdecode::tool {
namespace {

using Json = InputJson;
static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

// A safetensors file: 8 bytes of header length, a JSON header, raw data.
class DumpFile {
 public:
  static Result<DumpFile> read(const std::string& path) {
    Result<runner::MappedFile> file = runner::MappedFile::open(path);
    if (!file.ok()) return in_context("--dump: ", file.status());
    DumpFile dump(path, std::move(file).value());
    uint64_t header_bytes = 0;
    if (dump.bytes().size() >= 8) std::memcpy(&header_bytes, dump.bytes().data(), 8);
    if (header_bytes == 0 || header_bytes > dump.bytes().size() - 8) {
      return dump.broken("has no header");
    }
    const uint8_t* header = dump.bytes().data() + 8;
    Result<Json> json = parse_json({header, static_cast<size_t>(header_bytes)});
    if (!json.ok()) return dump.broken("has a header that " + json.status().message());
    dump.header_ = std::move(json).value();
    if (!dump.header_.is_object()) return dump.broken("has a header that is no JSON object");
    dump.data_ = 8 + static_cast<size_t>(header_bytes);
    return dump;
  }

  // An F16 or F32 tensor of rank 3 as fp32.
  Status tensor(const std::string& name, std::vector<int64_t>& shape,
                std::vector<float>& values) const {
    const auto found = header_.find(name);
    if (found == header_.end()) {
      return not_found("--dump {}: has no tensor {}", path_, name);
    }
    const Json entry = *found;
    size_t offsets[2] = {};
    const Json dtype = entry.is_object() ? entry.value("dtype", Json()) : Json();
    if ((dtype != "F16" && dtype != "F32") || !read_integers(entry, "shape", 3, shape) ||
        !read_offsets(entry, offsets)) {
      return broken(fmt::format("{}: is not an F16 or F32 tensor of three dimensions", name));
    }
    const size_t element = dtype == "F32" ? 4 : 2;
    int64_t count = 1;
    for (const int64_t size : shape) {
      if (size < 1 || size > (int64_t{1} << 20)) {  // so that the product fits
        return broken(fmt::format("{}: a size is {}; allowed: 1 to {}", name, size, 1 << 20));
      }
      count *= size;
    }
    if (offsets[1] < offsets[0] || offsets[1] > bytes().size() - data_ ||
        offsets[1] - offsets[0] != element * static_cast<size_t>(count)) {
      return broken(name + ": does not lie in the file");
    }
    values.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint8_t* at = bytes().data() + data_ + offsets[0] + element * i;
      uint16_t half = 0;
      std::memcpy(element == 4 ? static_cast<void*>(&values[i]) : &half, at, element);
      if (element == 2) values[i] = f16_to_f32(half);
    }
    return {};
  }

  Status broken(const std::string& what) const {
    return invalid_argument("--dump {}: {}", path_, what);
  }

 private:
  static bool read_integers(const Json& entry, const char* key, size_t count,
                            std::vector<int64_t>& values) {
    const auto found = entry.find(key);
    if (found == entry.end() || !found->is_array() || found->size() != count) return false;
    values.clear();
    for (const Json& item : *found) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
      values.push_back(item.get<int64_t>());
    }
    return true;
  }
  static bool read_offsets(const Json& entry, size_t (&offsets)[2]) {
    std::vector<int64_t> values;
    if (!read_integers(entry, "data_offsets", 2, values)) return false;
    offsets[0] = static_cast<size_t>(values[0]);
    offsets[1] = static_cast<size_t>(values[1]);
    return true;
  }

  DumpFile(std::string path, runner::MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  std::span<const uint8_t> bytes() const { return file_.bytes(); }

  std::string path_;
  runner::MappedFile file_;
  Json header_;
  size_t data_ = 0;  // of the raw data in the file
};

}  // namespace

Result<std::shared_ptr<const bench::KvSample>> read_dump(const std::string& path, int32_t layer) {
  LD_ASSIGN_OR_RETURN(const DumpFile file, DumpFile::read(path));
  auto sample = std::make_shared<bench::KvSample>();
  sample->source = std::filesystem::path(path).filename().string();
  sample->layer_idx = layer;
  std::vector<int64_t> q_shape, k_shape, v_shape;
  const std::string prefix = fmt::format("layers.{}.", layer);
  LD_RETURN_IF_ERROR(file.tensor(prefix + "q", q_shape, sample->q));
  LD_RETURN_IF_ERROR(file.tensor(prefix + "k", k_shape, sample->k));
  LD_RETURN_IF_ERROR(file.tensor(prefix + "v", v_shape, sample->v));
  if (k_shape != v_shape || q_shape[0] != k_shape[0] || q_shape[2] != k_shape[2]) {
    return file.broken(prefix + "q, k and v: differ in tokens or channels");
  }
  sample->num_tokens = q_shape[0];
  sample->num_q_heads = static_cast<int32_t>(q_shape[1]);
  sample->num_kv_heads = static_cast<int32_t>(k_shape[1]);
  sample->head_dim = static_cast<int32_t>(q_shape[2]);
  return std::shared_ptr<const bench::KvSample>(std::move(sample));
}

}  // namespace longdecode::tool
