// Where a command's JSON goes: a file, which appears whole or not at all, or stdout.
#ifndef LONGDECODE_TOOLS_OUTPUT_H_
#define LONGDECODE_TOOLS_OUTPUT_H_

#include <string>
#include <string_view>
#include <vector>

#include "longdecode/status.h"
#include "runner/output_file.h"

namespace longdecode::tool {

// A regular file to be written to the path of the flag. Dropped, it was a check: nothing is left.
Result<runner::OutputFile> create_output(const char* flag, const std::string& path);

// An error of that file, with flag and path named.
Status name_output(const char* flag, const std::string& path, const Status& status);

// Refuses the output `path` of `flag` if it is one of the files in `others`, which the command
// reads or writes too; "-" is the file on stdin, an empty name is none.
Status check_own_file(const char* flag, const std::string& path,
                      const std::vector<std::string>& others);

class JsonOutput {
 public:
  // path "-" is stdout, "" is nowhere. Called before the work starts: a path that cannot be written
  // is an error at once, as is one of `others` (see check_own_file), and nothing is left there if
  // the work fails.
  static Result<JsonOutput> open(const std::string& path, const std::vector<std::string>& others);

  bool enabled() const { return !path_.empty(); }
  bool is_stdout() const { return path_ == "-"; }

  // Writes the text and a newline: a regular file whole, as an OutputFile, the rest as it is open.
  Status write(std::string_view text) const;

 private:
  std::string path_;
  bool is_special_ = false;  // a device, a FIFO
  int descriptor_ = -1;      // that `path_` stands for (/dev/stdout), whatever is behind it
};

// Writes all of `text` to stdout and flushes. An error when stdout is closed or full.
Status write_stdout(std::string_view text);

// The text with blanks for control characters, those of a file name for instance: they must not
// reach the terminal.
std::string one_line(std::string text);

// Writes what it can to stderr: there is nowhere left to report that it is closed or full.
void write_stderr(std::string_view text);

// A line on stderr that is no error: "longdecode: note: ...".
void print_note(std::string_view text);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_OUTPUT_H_
