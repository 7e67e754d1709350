#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/errors.h"

namespace longdecode::tool {
namespace {

Status write_all(std::FILE* file, std::string_view text, std::string_view name) {
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (written) return {};
  return make_status(StatusCode::kUnavailable, "cannot write {}: {}", name, std::strerror(errno));
}

}  // namespace

Result<JsonOutput> JsonOutput::open(const std::string& path) {
  JsonOutput output;
  output.path_ = path;
  if (path.empty() || path == "-") return output;
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::directory) {
    return invalid_argument("--json {}: is a directory", path);
  }
  const bool replace =
      kind == std::filesystem::file_type::not_found || kind == std::filesystem::file_type::regular;
  if (kind == std::filesystem::file_type::regular && access(path.c_str(), W_OK) != 0) {
    return invalid_argument("--json {}: cannot be written: {}", path, std::strerror(errno));
  }
  if (replace) output.temporary_path_ = fmt::format("{}.tmp{}", path, getpid());
  const std::string& target = replace ? output.temporary_path_ : path;
  output.file_ = std::fopen(target.c_str(), "wb");
  if (output.file_ == nullptr) {
    output.temporary_path_.clear();
    return invalid_argument("--json {}: cannot be written: {}", path, std::strerror(errno));
  }
  return output;
}

JsonOutput::JsonOutput(JsonOutput&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, {})),
      file_(std::exchange(other.file_, nullptr)) {}

JsonOutput::~JsonOutput() {
  if (file_ != nullptr) std::fclose(file_);
  if (!temporary_path_.empty()) std::remove(temporary_path_.c_str());
}

Status JsonOutput::write(std::string_view text) {
  if (!enabled()) return {};
  const std::string line = std::string(text) + "\n";
  if (is_stdout()) return write_stdout(line);
  Status status = write_all(file_, line, "--json " + path_);
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && status.ok()) {
    status = make_status(StatusCode::kUnavailable, "cannot write --json {}: {}", path_,
                         std::strerror(errno));
  }
  if (!status.ok() || temporary_path_.empty()) return status;
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return make_status(StatusCode::kUnavailable, "cannot write --json {}: {}", path_,
                       std::strerror(errno));
  }
  temporary_path_.clear();
  return {};
}

Status write_stdout(std::string_view text) { return write_all(stdout, text, "stdout"); }

}  // namespace longdecode::tool
