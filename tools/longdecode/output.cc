#include "output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::tool {
namespace {

namespace fs = std::filesystem;

Status write_error(std::string_view name) {
  return make_status(StatusCode::kUnavailable, "cannot write {}: {}", name, std::strerror(errno));
}

bool write_all(std::FILE* file, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
}

// Replaces what is in the file at `path`.
Status write_file(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return write_error(path);
  const bool written = write_all(file, text);
  const Status status = written ? Status() : write_error(path);
  if (std::fclose(file) != 0 && written) return write_error(path);
  return status;
}

std::string temporary_path(const std::string& path) {
  return fmt::format("{}.tmp{}", path, getpid());
}

// The place that a write to the path ends at: links are followed, to what is not there yet, too.
fs::path link_target(const std::string& path) {
  constexpr int kMaxLinks = 40;  // as the kernel; a ring of links ends here and cannot be written
  std::error_code error;
  fs::path place = path;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(place, error); ++i) {
    place = place.parent_path() / fs::read_symlink(place, error);
  }
  const fs::path folder = fs::canonical(fs::absolute(place, error).parent_path(), error);
  return error ? place : folder / place.filename();
}

}  // namespace

Result<std::string> check_output_path(const char* flag, const std::string& path) {
  if (path == "-") {
    return invalid_argument("{} is -; allowed: a path (./- is a file named -)", flag);
  }
  std::error_code error;
  const fs::file_type kind = fs::status(path, error).type();
  if (kind == fs::file_type::directory) return invalid_argument("{} {} is a directory", flag, path);
  const bool exists = kind != fs::file_type::not_found;
  if (exists && access(path.c_str(), W_OK) != 0) {
    return invalid_argument("{} {} cannot be written: {}", flag, path, std::strerror(errno));
  }
  if (exists && kind != fs::file_type::regular) {
    return invalid_argument("{} {} is no regular file", flag, path);
  }
  const std::string target = link_target(path).string();
  const std::string trial = temporary_path(target);
  if (!write_file(trial, "").ok()) {
    return invalid_argument("{} {} cannot be written: {}", flag, path, std::strerror(errno));
  }
  std::remove(trial.c_str());
  return target;
}

Status check_own_file(const char* flag, const std::string& path,
                      const std::vector<std::string>& others) {
  const auto is_file = [](const std::string& name) { return !name.empty() && name != "-"; };
  if (!is_file(path)) return {};
  for (const std::string& other : others) {
    std::error_code error;
    const bool same = is_file(other) && (fs::equivalent(path, other, error) ||
                                         link_target(path) == link_target(other));
    if (!same) continue;
    return invalid_argument("{} {} is {}, which this command uses too; allowed: another file", flag,
                            path, other);
  }
  return {};
}

Result<JsonOutput> JsonOutput::open(const std::string& path,
                                    const std::vector<std::string>& others) {
  JsonOutput output;
  output.path_ = path;
  if (path.empty() || path == "-") return output;
  LD_RETURN_IF_ERROR(check_own_file("--json", path, others));
  std::error_code error;
  const fs::file_type kind = fs::status(path, error).type();
  const bool special = kind == fs::file_type::character || kind == fs::file_type::fifo;
  if (special && access(path.c_str(), W_OK) == 0) return output;
  LD_ASSIGN_OR_RETURN(output.path_, check_output_path("--json", path));
  output.temporary_path_ = temporary_path(output.path_);
  return output;
}

Status JsonOutput::write(std::string_view text) const {
  if (!enabled()) return {};
  const std::string line = std::string(text) + "\n";
  if (is_stdout()) return write_stdout(line);
  if (temporary_path_.empty()) return write_file(path_, line);
  Status status = write_file(temporary_path_, line);
  if (status.ok() && std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    status = write_error(path_);
  }
  if (!status.ok()) std::remove(temporary_path_.c_str());
  return status;
}

Status write_stdout(std::string_view text) {
  return write_all(stdout, text) ? Status() : write_error("stdout");
}

void write_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::string one_line(std::string text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  while (!text.empty() && is_control(text.back())) text.pop_back();
  std::replace_if(text.begin(), text.end(), is_control, ' ');
  return text;
}

void print_note(std::string_view text) {
  write_stderr(fmt::format("longdecode: note: {}\n", text));
}

}  // namespace longdecode::tool
