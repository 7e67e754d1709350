// Where a command's JSON goes: a file, which appears whole or not at all, or stdout.
#ifndef LONGDECODE_TOOLS_OUTPUT_H_
#define LONGDECODE_TOOLS_OUTPUT_H_

#include <cstdio>
#include <string>
#include <string_view>

#include "longdecode/status.h"

namespace longdecode::tool {

class JsonOutput {
 public:
  // path "-" is stdout, "" is nowhere. Opened before the work starts, so that a path that cannot be
  // written is an error at once. A regular file is written beside its place and renamed by write().
  static Result<JsonOutput> open(const std::string& path);
  JsonOutput(JsonOutput&& other) noexcept;
  JsonOutput& operator=(JsonOutput&&) = delete;
  ~JsonOutput();  // without a write() leaves no file behind

  bool enabled() const { return !path_.empty(); }
  bool is_stdout() const { return path_ == "-"; }

  // Writes the text and a newline, once.
  Status write(std::string_view text);

 private:
  JsonOutput() = default;

  std::string path_;
  std::string temporary_path_;  // "" when `path_` itself is open
  std::FILE* file_ = nullptr;
};

// Writes all of `text` to stdout and flushes. An error when stdout is closed or full.
Status write_stdout(std::string_view text);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_OUTPUT_H_
