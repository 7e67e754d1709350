#include "safetensors.h"

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
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

Status write_error(const std::string& path) {
  return make_status(StatusCode::kUnavailable, "cannot write {}: {}", path, std::strerror(errno));
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
  SafetensorsWriter writer;
  LD_ASSIGN_OR_RETURN(writer.path_, check_output_path("-o", path));
  writer.temporary_path_ = fmt::format("{}.tmp{}", writer.path_, getpid());
  writer.file_.reset(std::fopen(writer.temporary_path_.c_str(), "wb"));
  if (writer.file_ == nullptr) {
    return invalid_argument("-o {} cannot be written: {}", path, std::strerror(errno));
  }

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
  if (std::fwrite(length, 1, 8, writer.file_.get()) != 8 ||
      std::fwrite(text.data(), 1, text.size(), writer.file_.get()) != text.size()) {
    return write_error(writer.temporary_path_);
  }
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  std::remove(temporary_path_.c_str());
}

Status SafetensorsWriter::write(size_t tensor_idx, int64_t offset_bytes, const void* data,
                                int64_t num_bytes) {
  const auto size = static_cast<size_t>(num_bytes);
  if (fseeko(file_.get(), static_cast<off_t>(offsets_[tensor_idx] + offset_bytes), SEEK_SET) != 0 ||
      std::fwrite(data, 1, size, file_.get()) != size) {
    return write_error(temporary_path_);
  }
  return {};
}

Status SafetensorsWriter::commit() {
  Status status;
  if (std::fclose(file_.release()) != 0 ||
      std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    status = write_error(path_);
    std::remove(temporary_path_.c_str());
  }
  return status;
}

}  // namespace longdecode::tool
