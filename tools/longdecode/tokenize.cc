#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "commands.h"
#include "generate_options.h"
#include "model_file.h"
#include "output.h"
#include "output_flags.h"
#include "prompt.h"
#include "runner/gguf/gguf_file.h"

namespace longdecode::tool {
namespace {

constexpr const char* kExamples = R"(
Examples:
  longdecode tokenize -m model.gguf -p "Once upon a time"
  longdecode tokenize -m model.gguf -f question.txt --chat --json -)";

struct TokenizeOptions {
  PromptOptions prompt;
  std::string json_path;
};

// One token a line: the id and its text, quoted as in JSON.
std::string token_lines(const runner::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  using nlohmann::json;
  std::string lines;
  for (int32_t id : ids) {
    const json text = tokenizer.decode(id, true);
    lines +=
        fmt::format("{:>7} {}\n", id, text.dump(-1, ' ', true, json::error_handler_t::replace));
  }
  return lines;
}

Status run_tokenize(const TokenizeOptions& options) {
  LD_ASSIGN_OR_RETURN(const JsonOutput output,
                      JsonOutput::open(options.json_path, input_paths(options.prompt)));
  LD_ASSIGN_OR_RETURN(const std::string prompt, read_prompt(options.prompt, 0));
  LD_ASSIGN_OR_RETURN(const auto file, open_model_file(options.prompt.model_path));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, model_tokenizer(file));
  LD_ASSIGN_OR_RETURN(const auto encoding,
                      encode_prompt(options.prompt, 0, prompt, file, tokenizer));
  if (!output.is_stdout()) {
    LD_RETURN_IF_ERROR(write_stdout(token_lines(tokenizer, encoding.ids)));
  }
  const nlohmann::ordered_json json = {{"num_tokens", encoding.ids.size()},
                                       {"token_ids", encoding.ids},
                                       {"num_dropped_bytes", encoding.num_dropped_bytes},
                                       {"model", options.prompt.model_path}};
  return output.write(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void add_tokenize(CLI::App& app, Status& outcome) {
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a prompt");
  auto options = std::make_shared<TokenizeOptions>();
  add_prompt_options(*command, options->prompt, false);
  add_json_flag(*command, options->json_path);
  command->footer(kExamples);
  command->callback([command, options, &outcome] {
    outcome = check_prompt_options(*command, options->prompt);
    if (outcome.ok()) outcome = run_tokenize(*options);
  });
}

}  // namespace longdecode::tool
