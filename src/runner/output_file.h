// A file that appears at its place whole or not at all.
#ifndef LONGDECODE_RUNNER_OUTPUT_FILE_H_
#define LONGDECODE_RUNNER_OUTPUT_FILE_H_

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "longdecode/status.h"

namespace longdecode::runner {

// The place that a write to the path ends at: links are followed, to what is not there yet, too. A
// link that stands for an open descriptor (/dev/stdout, /proc/self/fd/1) is not: it names no place.
std::filesystem::path link_target(const std::string& path);

// Written without a name, so that nothing is left when the process ends early, and put in its place
// by commit(). A file that is there keeps its mode and, where permitted, its owner. One that cannot
// be replaced (a mount, a folder without permission) but written to is overwritten by commit().
class OutputFile {
 public:
  // Without a change at `path`. A message says what is wrong with the path, without naming it: "is
  // a directory", "cannot be written: ...".
  static Result<OutputFile> create(const std::string& path);

  std::FILE* stream() const { return stream_.get(); }
  Status commit();

 private:
  struct FileClose {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  OutputFile() = default;
  Status check_target();
  Status open_stream();
  bool replace() const;
  bool overwrite() const;

  std::filesystem::path target_;
  bool exists_ = false;
  bool replaceable_ = true;
  std::unique_ptr<std::FILE, FileClose> stream_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_OUTPUT_FILE_H_
