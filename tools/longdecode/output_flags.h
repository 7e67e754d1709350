// The flags of commands that report: where their JSON goes, and whether they show progress.
#ifndef LONGDECODE_TOOLS_OUTPUT_FLAGS_H_
#define LONGDECODE_TOOLS_OUTPUT_FLAGS_H_

#include <CLI/CLI.hpp>
#include <string>

namespace longdecode::tool {

inline void add_json_flag(CLI::App& command, std::string& path) {
  command.add_option("--json", path, "Write the result as JSON to FILE, or to stdout alone for -")
      ->type_name("FILE");
}

inline void add_progress_flag(CLI::App& command, bool& progress) {
  command.add_flag("--progress", progress, "Show progress on stderr even when it is no terminal");
}

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_OUTPUT_FLAGS_H_
