#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "chat.h"
#include "commands.h"
#include "generate_batch.h"
#include "generate_options.h"
#include "generate_report.h"
#include "generate_session.h"
#include "generator.h"
#include "model_file.h"
#include "output.h"
#include "progress.h"
#include "prompt.h"
#include "prompt_cache_file.h"
#include "runner/model/session.h"
#include "runner/sampler/sampler.h"

namespace longdecode::tool {
namespace {

constexpr const char* kExamples = R"(
Examples:
  longdecode generate -m model.gguf -p "Once upon a time" -n 64
  longdecode generate -m model.gguf -f question.txt --chat --temp 0 --method ffd
  longdecode generate -m model.gguf -i --method ffd
  longdecode generate -m model.gguf -f long.txt --prompt-cache long.cache --verbose
  longdecode generate -m model.gguf -f a.txt -f b.txt -f c.txt --chat --json answers.json
  longdecode generate -m model.gguf -f long.txt --method ffd --delta 7 --dense-layers 0,1 --json -

Every option with (Env:...) can be set in the environment, too; the command line wins.)";

Status prefill_rest(std::span<const int32_t> prompt, bool progress, runner::Session& session) {
  const auto rest = prompt.subspan(static_cast<size_t>(session.num_tokens()));
  if (rest.empty()) return {};
  return session.prefill(rest, Progress("prefill", progress));
}

Status run_generate(GenerateOptions options) {
  std::vector<std::string> used = input_paths(options.prompt);
  LD_RETURN_IF_ERROR(check_own_file("--prompt-cache", options.prompt_cache_path, used));
  used.push_back(options.prompt_cache_path);
  LD_ASSIGN_OR_RETURN(const JsonOutput output, JsonOutput::open(options.json_path, used));
  LD_ASSIGN_OR_RETURN(const std::string prompt, read_prompt(options.prompt, 0));
  LD_ASSIGN_OR_RETURN(auto cache, PromptCacheFile::open(options.prompt_cache_path));

  Stopwatch watch;
  GenerateResult result;
  LD_ASSIGN_OR_RETURN(const auto model, load_model(options.prompt.model_path));
  LD_RETURN_IF_ERROR(check_layers(options.session, model->config()));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, model_tokenizer(model->file()));
  result.load_s = watch.lap();
  LD_ASSIGN_OR_RETURN(const auto encoding,
                      encode_prompt(options.prompt, 0, prompt, model->file(), tokenizer));
  result.tokenize_s = watch.lap();
  const int64_t wanted = options.num_predict;
  result.prompt_tokens = static_cast<int64_t>(encoding.ids.size());
  LD_ASSIGN_OR_RETURN(
      const PromptRoom room,
      fit_context(options, "the prompt", result.prompt_tokens, model->config().context_len));
  options.num_predict = room.num_predict;
  LD_ASSIGN_OR_RETURN(auto session, open_generate_session(options, model, room.context_len));
  result.load_s += watch.lap();

  LD_ASSIGN_OR_RETURN(result.cached_tokens, cache.restore(encoding.ids, *model, session));
  result.cache_s = watch.lap();
  LD_RETURN_IF_ERROR(prefill_rest(encoding.ids, options.progress, session));
  result.prefill_s = watch.lap();
  LD_RETURN_IF_ERROR(cache.save_prompt(encoding.ids, session));
  result.cache_s += watch.lap();

  result.seed = choose_seed(options.seed);
  options.sampler.seed = result.seed;
  LD_ASSIGN_OR_RETURN(auto sampler, runner::Sampler::create(options.sampler));
  const GeneratorOptions generator_options = {.ignore_eos = options.ignore_eos,
                                              .print_text = !output.is_stdout()};
  Generator generator(generator_options, tokenizer, options.sampler, std::move(sampler));
  LD_ASSIGN_OR_RETURN(Generated generated, generator.run(options.num_predict, session));
  if (!output.is_stdout() && options.num_predict > 0) LD_RETURN_IF_ERROR(write_stdout("\n"));
  watch.lap();
  LD_RETURN_IF_ERROR(
      cache.save_all(encoding.ids, generated.token_ids, generated.decode_steps, session));
  result.cache_s += watch.lap();

  const bool cut = generated.stop_reason == "length" && options.num_predict < wanted;
  result.stop_reason = cut ? "context" : generated.stop_reason;
  if (cut) {
    print_note(fmt::format("the text ends early: the context of {} tokens is full (-c, -n {})",
                           room.context_len, wanted));
  }
  result.token_ids = std::move(generated.token_ids);
  result.text = std::move(generated.text);
  result.decode_steps = generated.decode_steps;
  result.decode_s = generated.total_s;
  result.sampling_s = generated.sampling_s;
  fill_result(options, session, result);
  result.model_name = model->config().name;
  LD_RETURN_IF_ERROR(output.write(report_json(result)));
  write_stderr(report_table(result));
  if (options.verbose) write_stderr(timing_table(result));
  return {};
}

}  // namespace

void add_generate(CLI::App& app, Status& outcome) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt with a model");
  auto options = std::make_shared<GenerateOptions>();
  add_generate_options(*command, *options);
  command->footer(kExamples);
  command->callback([command, options, &outcome] {
    outcome = check_generate_options(*command, *options);
    if (!outcome.ok()) return;
    for (const std::string& flag : options->unused_flags) {
      print_note(fmt::format("{} has no effect with --method {}", flag, options->method));
    }
    outcome = options->interactive               ? run_chat(*options)
              : num_prompts(options->prompt) > 1 ? run_generate_batch(*options)
                                                 : run_generate(*options);
  });
}

}  // namespace longdecode::tool
