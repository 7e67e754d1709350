#include "safetensors.h"

#include <sys/types.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/status_macros.h"
#include "output.h"

namespace longdecode::tool {
namespace {

constexpr size_t kHeaderAlignment = 64;

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
  }
  return "";
}

}  // namespace

int64_t TensorEntry::num_bytes() const {
  int64_t count = dtype_bytes(dtype);
  for (const int64_t size : shape) count *= size;
  return count;
}

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& path, const std::vector<TensorEntry>& tensors,
    const std::map<std::string, std::string>& metadata) {
  LD_ASSIGN_OR_RETURN(auto file, create_output("-o", path));
  SafetensorsWriter writer(path, std::move(file));
  nlohmann::ordered_json header = {{"__metadata__", metadata}};
  int64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    writer.offsets_.push_back(end);
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {end, end + tensor.num_bytes()}}};
    end += tensor.num_bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  const size_t size =
      (8 + text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment;
  text.resize(size - 8, ' ');
  for (int64_t& offset : writer.offsets_) offset += static_cast<int64_t>(size);
  unsigned char length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  LD_RETURN_IF_ERROR(writer.write_at(0, length, sizeof(length)));
  LD_RETURN_IF_ERROR(writer.write_at(sizeof(length), text.data(), text.size()));
  return writer;
}

Status SafetensorsWriter::write_at(int64_t offset_bytes, const void* data, size_t num_bytes) {
  std::FILE* file = file_.stream();
  if (fseeko(file, static_cast<off_t>(offset_bytes), SEEK_SET) == 0 &&
      std::fwrite(data, 1, num_bytes, file) == num_bytes) {
    return {};
  }
  return make_status(StatusCode::kUnavailable, "-o {} cannot be written: {}", path_,
                     std::strerror(errno));
}

Status SafetensorsWriter::write(size_t tensor_idx, int64_t offset_bytes, const void* data,
                                int64_t num_bytes) {
  return write_at(offsets_[tensor_idx] + offset_bytes, data, static_cast<size_t>(num_bytes));
}

Status SafetensorsWriter::commit() { return name_output("-o", path_, file_.commit()); }

}  // namespace longdecode::tool
