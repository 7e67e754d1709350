#include "output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStdin = "/proc/self/fd/0";

Status write_error(std::string_view name) {
  return make_status(StatusCode::kUnavailable, "cannot write {}: {}", name, std::strerror(errno));
}

bool write_all(std::FILE* file, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
}

// Into what is open already: a device, a pipe, a file at the place where it is.
Status write_special(const std::string& path, std::FILE* file, std::string_view text) {
  if (file == nullptr) return write_error(path);
  const bool written = write_all(file, text);
  const Status status = written ? Status() : write_error(path);
  if (std::fclose(file) != 0 && written) return write_error(path);
  return status;
}

// N for a path that leads to /proc/self/fd/N, whatever is open there; else -1.
int own_descriptor(const std::string& path) {
  std::error_code error;
  const fs::path place = runner::link_target(path);
  if (place.parent_path() != fs::canonical("/proc/self/fd", error) || error) return -1;
  const std::string name = place.filename();
  int number = -1;
  const std::errc bad = std::from_chars(name.data(), name.data() + name.size(), number).ec;
  return bad == std::errc() && std::to_string(number) == name ? number : -1;
}

}  // namespace

Status name_output(const char* flag, const std::string& path, const Status& status) {
  return in_context(fmt::format("{} {} ", flag, path), status);
}

Result<runner::OutputFile> create_output(const char* flag, const std::string& path) {
  if (path == "-") {
    return invalid_argument("{} is -; allowed: a path (./- is a file named -)", flag);
  }
  Result<runner::OutputFile> file = runner::OutputFile::create(path);
  if (!file.ok()) return name_output(flag, path, file.status());
  return file;
}

Status check_own_file(const char* flag, const std::string& path,
                      const std::vector<std::string>& others) {
  if (path.empty() || path == "-") return {};
  for (const std::string& other : others) {
    std::error_code error;
    const std::string place = other == "-" ? kStdin : other;
    if (other.empty() || (other == "-" && !fs::is_regular_file(place, error))) continue;
    const bool same = fs::equivalent(path, place, error) ||
                      runner::link_target(path) == runner::link_target(place);
    if (!same) continue;
    return invalid_argument("{} {} is {}, which this command uses too; allowed: another file", flag,
                            path, other == "-" ? "the file on stdin (-)" : other);
  }
  return {};
}

Result<JsonOutput> JsonOutput::open(const std::string& path,
                                    const std::vector<std::string>& others) {
  JsonOutput output;
  output.path_ = path;
  if (path.empty() || path == "-") return output;
  LD_RETURN_IF_ERROR(check_own_file("--json", path, others));
  output.descriptor_ = own_descriptor(path);
  if (output.descriptor_ >= 0) {
    const int mode = fcntl(output.descriptor_, F_GETFL);
    if (mode != -1 && (mode & O_ACCMODE) != O_RDONLY) return output;
    return invalid_argument("--json {} is descriptor {}, which is not open for writing", path,
                            output.descriptor_);
  }
  std::error_code error;
  const fs::file_type kind = fs::status(path, error).type();
  const bool special = kind == fs::file_type::character || kind == fs::file_type::fifo;
  output.is_special_ = special && access(path.c_str(), W_OK) == 0;
  if (!output.is_special_) LD_RETURN_IF_ERROR(create_output("--json", path).status());
  return output;
}

Status JsonOutput::write(std::string_view text) const {
  if (!enabled()) return {};
  const std::string line = std::string(text) + "\n";
  if (is_stdout()) return write_stdout(line);
  if (descriptor_ >= 0) {
    const int copy = dup(descriptor_);
    return write_special(path_, copy < 0 ? nullptr : fdopen(copy, "wb"), line);
  }
  if (is_special_) return write_special(path_, std::fopen(path_.c_str(), "wb"), line);
  LD_ASSIGN_OR_RETURN(auto file, create_output("--json", path_));
  if (!write_all(file.stream(), line)) return write_error("--json " + path_);
  return name_output("--json", path_, file.commit());
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
