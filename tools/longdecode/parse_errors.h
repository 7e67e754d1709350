// What is said about a command line that cannot be used.
#ifndef LONGDECODE_TOOLS_PARSE_ERRORS_H_
#define LONGDECODE_TOOLS_PARSE_ERRORS_H_

#include <CLI/CLI.hpp>
#include <string>

namespace longdecode::tool {

// Refuses what CLI11 would turn into another value: an empty name where an option takes a FILE, and
// numbers that are empty, octal, hexadecimal or beyond their type.
void check_option_texts(CLI::App& app);

// Only the chosen command reads its variables, and not those of options that are given.
void confine_environment(CLI::App& app);

// Before parsing: throws for a flag of the command line, --flag=TEXT, that is not true or false.
void check_flag_texts(const CLI::App& app, int argc, char** argv);

// Whether the command that was parsed, well or not, is asked for its help.
bool wants_help(const CLI::App& app);

// The message of an error that app.parse(argc, argv) threw.
std::string parse_error_text(const CLI::App& app, const CLI::ParseError& error, int argc,
                             char** argv);

// The message, with the environment variable named that a value came from which it complains about.
std::string name_environment(const CLI::App& app, int argc, char** argv,
                             const std::string& message);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_PARSE_ERRORS_H_
