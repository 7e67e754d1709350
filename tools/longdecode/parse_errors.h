// What is said about a command line that cannot be used.
#ifndef LONGDECODE_TOOLS_PARSE_ERRORS_H_
#define LONGDECODE_TOOLS_PARSE_ERRORS_H_

#include <CLI/CLI.hpp>
#include <string>

namespace longdecode::tool {

// Refuses an empty name wherever an option takes a FILE.
void refuse_empty_file_names(CLI::App& app);

// The message of an error that app.parse(argc, argv) threw.
std::string parse_error_text(const CLI::App& app, const CLI::ParseError& error, int argc,
                             char** argv);

// The message, with the environment variable named that a value came from which it complains about.
std::string name_environment(const CLI::App& app, int argc, char** argv,
                             const std::string& message);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_PARSE_ERRORS_H_
