#include <fcntl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "commands.h"
#include "longdecode/status.h"
#include "longdecode/version.h"
#include "output.h"
#include "parse_errors.h"

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

void print_error(std::string message) {
  write_stderr(fmt::format("longdecode: error: {}\n", one_line(std::move(message))));
}

// An output that is opened later must not become descriptor 0, 1 or 2: messages would be written
// into it. A descriptor that was closed stays unusable for what it is for, so that a write to a
// closed stdout is still an error.
bool reserve_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    if (open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY) != descriptor) return false;
  }
  return true;
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
  check_option_texts(app);
  confine_environment(app);
  try {
    check_flag_texts(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0 && !wants_help(app)) {
      print_error(parse_error_text(app, error, argc, argv));
      return kExitBadInput;
    }
    std::ostringstream text;  // of --help or --version
    app.exit(wants_help(app) ? CLI::CallForHelp() : error, text, text);
    outcome = write_stdout(text.str());
  }
  if (!outcome.ok()) print_error(name_environment(app, argc, argv, outcome.message()));
  return exit_code(outcome.code());
}

}  // namespace
}  // namespace longdecode::tool

int main(int argc, char** argv) {
  if (!longdecode::tool::reserve_standard_descriptors()) return longdecode::tool::kExitRunTime;
  // A closed stdout and a file beyond the limit are errors of write, not a silent death.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return longdecode::tool::run(argc, argv);
  } catch (const std::exception& error) {
    longdecode::tool::print_error(error.what());
    return longdecode::tool::kExitRunTime;
  }
}
