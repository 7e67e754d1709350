#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "commands.h"
#include "longdecode/status.h"
#include "longdecode/version.h"
#include "output.h"

namespace longdecode::tool {
namespace {

constexpr int kExitRunTime = 1;
constexpr int kExitBadInput = 2;

int exit_code(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
    case StatusCode::kDataLoss:
    case StatusCode::kNotFound:
      return kExitBadInput;
    default:
      return kExitRunTime;
  }
}

// One line, whatever the message holds: control characters of a file name must not reach the
// terminal.
void print_error(std::string message) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  while (!message.empty() && is_control(message.back())) message.pop_back();
  std::replace_if(message.begin(), message.end(), is_control, ' ');
  write_stderr(fmt::format("longdecode: error: {}\n", message));
}

// CLI11's own message does not name what was given or what there is.
std::string missing_command(const CLI::App& app, int argc, char** argv) {
  std::vector<const CLI::App*> commands = app.get_subcommands({});
  int depth = 1;
  for (; depth < argc; ++depth) {
    const auto named = [&](const CLI::App* command) { return command->get_name() == argv[depth]; };
    const auto found = std::find_if(commands.begin(), commands.end(), named);
    if (found == commands.end()) break;
    commands = (*found)->get_subcommands({});
  }
  std::string allowed;
  for (const CLI::App* command : commands) {
    allowed += (allowed.empty() ? "" : ", ") + command->get_name();
  }
  const bool has_word = depth < argc && argv[depth][0] != '-';
  return fmt::format("{}{}; allowed: {} (see longdecode --help)",
                     has_word ? "unknown command " : "",
                     has_word ? argv[depth] : "no command given", allowed);
}

int run(int argc, char** argv) {
  CLI::App app("Decode attention for long contexts: dense and top-delta (FFD) attention",
               "longdecode");
  app.set_version_flag("--version", std::string("longdecode " LONGDECODE_VERSION_STRING));
  app.require_subcommand(1);
  Status outcome;
  add_generate(app, outcome);
  add_tokenize(app, outcome);
  add_perplexity(app, outcome);
  add_dump_qkv(app, outcome);
  add_study_format(app, outcome);
  add_info(app, outcome);
  CLI::App* bench = app.add_subcommand("bench", "Measure an operation or a model");
  bench->require_subcommand(1);
  add_bench_attention(*bench, outcome);
  add_bench_model(*bench, outcome);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const bool no_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
                            std::string(error.what()).find("subcommand") != std::string::npos;
    print_error(no_command ? missing_command(app, argc, argv) : error.what());
    return kExitBadInput;
  }
  if (!outcome.ok()) print_error(outcome.message());
  return exit_code(outcome.code());
}

}  // namespace
}  // namespace longdecode::tool

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed stdout is an error of write, not a silent death
  try {
    return longdecode::tool::run(argc, argv);
  } catch (const std::exception& error) {
    longdecode::tool::print_error(error.what());
    return longdecode::tool::kExitRunTime;
  }
}
