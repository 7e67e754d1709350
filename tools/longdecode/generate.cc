#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "commands.h"
#include "generate_options.h"
#include "generate_report.h"
#include "output.h"
#include "progress.h"
#include "prompt.h"
#include "runner/model/session.h"
#include "runner/sampler/sampler.h"
#include "runner/tokenizer/from_gguf.h"
#include "runner/tokenizer/stream_decoder.h"

namespace longdecode::tool {
namespace {

constexpr const char* kExamples = R"(
Examples:
  longdecode generate -m model.gguf -p "Once upon a time" -n 64
  longdecode generate -m model.gguf -f question.txt --chat --temp 0 --method ffd
  longdecode generate -m model.gguf -f long.txt --method ffd --delta 7 --dense-layers 0,1 --json -

Every option with (Env:...) can be set in the environment, too; the command line wins.)";

uint64_t choose_seed(int64_t seed) {
  return seed >= 0 ? static_cast<uint64_t>(seed) : uint64_t{std::random_device()()};
}

// Sets context_len and lowers num_predict to what fits.
Status fit_context(GenerateOptions& options, int64_t prompt_tokens, int64_t model_context) {
  if (options.context_len > model_context) {
    return invalid_argument("-c is {}; the context of the model is {} tokens", options.context_len,
                            model_context);
  }
  const int64_t limit = options.context_len > 0 ? options.context_len : model_context;
  const char* limit_name = options.context_len > 0 ? "-c" : "the context of the model";
  if (prompt_tokens > limit) {
    return invalid_argument("the prompt has {} tokens; {} is {}", prompt_tokens, limit_name, limit);
  }
  if (prompt_tokens == limit && options.num_predict > 0) {
    return invalid_argument("the prompt has {} tokens, which leaves no room for more; {} is {}",
                            prompt_tokens, limit_name, limit);
  }
  options.num_predict = std::min(options.num_predict, limit - prompt_tokens);
  if (options.context_len == 0) options.context_len = prompt_tokens + options.num_predict;
  return {};
}

// Samples, prints and feeds tokens until something ends the text.
class Generator {
 public:
  Generator(const GenerateOptions& options, const runner::Tokenizer& tokenizer,
            runner::Sampler sampler, bool print_text, GenerateResult& result)
      : options_(options),
        tokenizer_(tokenizer),
        sampler_(std::move(sampler)),
        print_text_(print_text),
        result_(result) {}

  Status run(runner::Session& session) {
    const Stopwatch watch;
    result_.stop_reason = "length";
    while (static_cast<int64_t>(result_.token_ids.size()) < options_.num_predict) {
      LD_ASSIGN_OR_RETURN(const int32_t token, next_token(session));
      if (tokenizer_.is_end_of_generation(token)) {
        result_.stop_reason = "eos";
        break;
      }
      result_.token_ids.push_back(token);
      LD_RETURN_IF_ERROR(emit(decoder_.push(tokenizer_.decode(token))));
      if (static_cast<int64_t>(result_.token_ids.size()) == options_.num_predict) break;
      LD_RETURN_IF_ERROR(session.decode(token));
      ++result_.decode_steps;
    }
    LD_RETURN_IF_ERROR(emit(decoder_.flush()));
    result_.decode_s = watch.seconds();
    return {};
  }

 private:
  Result<int32_t> next_token(const runner::Session& session) {
    if (!options_.ignore_eos) return sampler_.sample(session.logits());
    const auto logits = session.logits();
    logits_.assign(logits.begin(), logits.end());
    for (size_t id = 0; id < logits_.size(); ++id) {
      if (tokenizer_.is_end_of_generation(static_cast<int32_t>(id))) {
        logits_[id] = -std::numeric_limits<float>::infinity();
      }
    }
    return sampler_.sample(logits_);
  }

  Status emit(const std::string& text) {
    result_.text += text;
    return print_text_ && !text.empty() ? write_stdout(text) : Status();
  }

  const GenerateOptions& options_;
  const runner::Tokenizer& tokenizer_;
  runner::Sampler sampler_;
  runner::StreamDecoder decoder_;
  std::vector<float> logits_;
  bool print_text_;
  GenerateResult& result_;
};

Status run_generate(GenerateOptions options) {
  LD_ASSIGN_OR_RETURN(const JsonOutput output, JsonOutput::open(options.json_path));
  for (const std::string& flag : options.unused_flags) {
    print_note(fmt::format("{} has no effect with --method {}", flag, options.method));
  }
  LD_ASSIGN_OR_RETURN(const std::string prompt, read_prompt(options.prompt));

  const Stopwatch load_watch;
  GenerateResult result;
  LD_ASSIGN_OR_RETURN(const auto model, runner::Model::load(options.prompt.model_path));
  LD_RETURN_IF_ERROR(check_layers(options.session, model->config()));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, runner::load_tokenizer(model->file()));
  LD_ASSIGN_OR_RETURN(const auto encoding,
                      encode_prompt(options.prompt, prompt, model->file(), tokenizer));
  const int64_t wanted = options.num_predict;
  result.prompt_tokens = static_cast<int64_t>(encoding.ids.size());
  LD_RETURN_IF_ERROR(fit_context(options, result.prompt_tokens, model->config().context_len));
  result.seed = choose_seed(options.seed);
  options.sampler.seed = result.seed;
  LD_ASSIGN_OR_RETURN(auto sampler, runner::Sampler::create(options.sampler));
  LD_ASSIGN_OR_RETURN(
      const auto session_opts,
      session_options(options.session, parse_method(options.method), options.context_len));
  LD_ASSIGN_OR_RETURN(auto session, runner::Session::create(model, session_opts));
  result.load_s = load_watch.seconds();

  const Stopwatch prefill_watch;
  LD_RETURN_IF_ERROR(session.prefill(encoding.ids, Progress("prefill", options.progress)));
  result.prefill_s = prefill_watch.seconds();

  const bool print_text = !output.is_stdout();
  Generator generator(options, tokenizer, std::move(sampler), print_text, result);
  LD_RETURN_IF_ERROR(generator.run(session));
  if (result.stop_reason == "length" && options.num_predict < wanted) {
    result.stop_reason = "context";
  }
  if (print_text) LD_RETURN_IF_ERROR(write_stdout("\n"));

  result.model_path = options.prompt.model_path;
  result.model_name = model->config().name;
  result.method = options.method;
  result.kernel = session.kernel_name();
  result.kv_type = options.session.kv_type;
  result.num_threads = session.options().device.num_threads;
  result.context_len = session.options().context_len;
  result.stats = session.stats();
  result.peak_rss_bytes = peak_rss_bytes();
  LD_RETURN_IF_ERROR(output.write(report_json(result)));
  fmt::print(stderr, "{}", report_table(result));
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
    if (outcome.ok()) outcome = run_generate(*options);
  });
}

}  // namespace longdecode::tool
