#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype_name.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "build_info.h"
#include "commands.h"
#include "model_file.h"
#include "open_session.h"
#include "option_checks.h"
#include "output.h"
#include "output_flags.h"
#include "progress.h"
#include "runner/model/session.h"
#include "session_options.h"
#include "text_tokens.h"

namespace longdecode::tool {
namespace {

constexpr const char* kExamples = R"(
The first half of the context is prefilled; every token of the second half is predicted by a decode
step of the chosen method over the true tokens before it. perplexity = exp(mean of -ln p).

Examples:
  longdecode perplexity -m model.gguf -f book.txt -c 6144
  longdecode perplexity -m model.gguf -f book.txt -c 6144 --method ffd --delta 5 --json -)";

constexpr int64_t kMinTokens = 4;
constexpr int64_t kStepsPerReport = 128;

struct PerplexityOptions {
  std::string model_path;
  std::string text_path;
  int64_t context_len = 0;
  std::string method = "dense";
  SessionFlags session;
  bool progress = false;
  std::string json_path;
  std::vector<std::string> unused_flags;  // given, but without effect on this method
};

struct PerplexityResult {
  double neg_log_likelihood = 0.0;  // nats, sum over the scored tokens
  int64_t scored_tokens = 0;
  double prefill_s = 0.0;
  double decode_s = 0.0;

  double perplexity() const {
    return std::exp(neg_log_likelihood / static_cast<double>(scored_tokens));
  }
  double decode_tok_s() const { return static_cast<double>(scored_tokens) / decode_s; }
};

// -ln of the probability of `token`.
double surprise(std::span<const float> logits, int32_t token) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(token)]);
}

Status score(const PerplexityOptions& options, std::span<const int32_t> tokens,
             runner::Session& session, PerplexityResult& result) {
  // The last token of the first half is fed by a decode step, so that the first token of the second
  // half is predicted by one, too.
  const size_t first_scored = tokens.size() / 2;
  const Stopwatch prefill_watch;
  LD_RETURN_IF_ERROR(
      session.prefill(tokens.first(first_scored - 1), Progress("prefill", options.progress)));
  result.prefill_s = prefill_watch.seconds();
  const Progress progress("decode", options.progress);
  const auto total = static_cast<int64_t>(tokens.size() - first_scored);
  for (size_t i = first_scored; i < tokens.size(); ++i) {
    const Stopwatch step_watch;
    LD_RETURN_IF_ERROR(session.decode(tokens[i - 1]));
    result.decode_s += step_watch.seconds();
    result.neg_log_likelihood += surprise(session.logits(), tokens[i]);
    ++result.scored_tokens;
    if (result.scored_tokens % kStepsPerReport == 0 || result.scored_tokens == total) {
      progress(result.scored_tokens, total);
    }
  }
  return {};
}

std::string report_json(const PerplexityOptions& options, const PerplexityResult& result,
                        const runner::Session& session) {
  const runner::SessionStats stats = session.stats();
  const nlohmann::ordered_json json = {
      {"perplexity", result.perplexity()},
      {"scored_tokens", result.scored_tokens},
      {"kept_fraction", stats.kept_fraction},
      {"decode_tok_s", result.decode_tok_s()},
      {"kv_bytes_read_per_token", stats.kv_bytes_read_per_token},
      {"neg_log_likelihood", result.neg_log_likelihood},
      {"method", options.method},
      {"delta", options.session.ffd.delta},  // infinity becomes null
      {"margin_sigmas", options.session.ffd.margin_sigmas},
      {"certified", options.session.ffd.certified},
      {"sink_tokens", options.session.ffd.sink_tokens},
      {"recent_tokens", options.session.ffd.recent_tokens},
      {"dense_layers", options.session.dense_layers},
      {"layer_deltas", options.session.layer_delta_texts},
      {"device", device_name(session.options().device.type)},
      {"kernel", session.kernel_name()},
      {"kv_type", dtype_name(session.options().kv_dtype)},
      {"context_len", session.num_tokens() + 1},
      {"num_threads", session.options().device.num_threads},
      {"prefill_s", result.prefill_s},
      {"decode_s", result.decode_s},
      {"model", options.model_path},
      {"file", options.text_path},
      {"version", build_info().version},
      {"commit", build_info().commit},
  };
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Status run_perplexity(const PerplexityOptions& options) {
  LD_ASSIGN_OR_RETURN(const JsonOutput output,
                      JsonOutput::open(options.json_path, {options.model_path, options.text_path}));
  for (const std::string& flag : options.unused_flags) {
    print_note(fmt::format("{} has no effect with --method {}", flag, options.method));
  }
  LD_ASSIGN_OR_RETURN(const auto model, load_model(options.model_path));
  LD_RETURN_IF_ERROR(check_layers(options.session, model->config()));
  LD_ASSIGN_OR_RETURN(const auto tokens,
                      read_text_tokens(options.text_path, *model, options.context_len, kMinTokens));
  const auto context_len = static_cast<int64_t>(tokens.size());
  LD_ASSIGN_OR_RETURN(
      auto session, open_session(model, options.session, parse_method(options.method), context_len,
                                 options.progress));
  PerplexityResult result;
  LD_RETURN_IF_ERROR(score(options, tokens, session, result));
  LD_RETURN_IF_ERROR(output.write(report_json(options, result, session)));
  if (output.is_stdout()) return {};
  return write_stdout(
      fmt::format("perplexity {:.4f} over {} tokens, {}, kept_fraction {:.3f}, {:.1f} tok/s\n",
                  result.perplexity(), result.scored_tokens, options.method,
                  session.stats().kept_fraction, result.decode_tok_s()));
}

Status check(const CLI::App& command, PerplexityOptions& options) {
  LD_RETURN_IF_ERROR(check_model_path(options.model_path));
  if (options.text_path.empty()) return invalid_argument("no text: give -f FILE");
  if (options.context_len != 0 &&
      (options.context_len < kMinTokens || options.context_len > kMaxCount)) {
    return invalid_argument("-c is {}; allowed: 0 (all) or {} to {}", options.context_len,
                            kMinTokens, kMaxCount);
  }
  LD_RETURN_IF_ERROR(check_choice("--method", options.method, {"dense", "ffd"}));
  if (options.method == "dense") options.unused_flags = given_ffd_flags(command);
  LD_RETURN_IF_ERROR(check_one_graph(options.session));
  return check_session_flags(command, options.session);
}

}  // namespace

void add_perplexity(CLI::App& app, Status& outcome) {
  CLI::App* command = app.add_subcommand("perplexity", "Score a text with a model's decode steps");
  auto options = std::make_shared<PerplexityOptions>();
  command->option_defaults()->always_capture_default();
  add_text_flags(*command, options->model_path, options->context_len,
                 fmt::format("{} or more; 0: all, ", kMinTokens));
  command->add_option("-f,--file", options->text_path, "Text, plain UTF-8; -: stdin (required)")
      ->type_name("FILE");
  command
      ->add_option("--method", options->method,
                   "dense: attend every token; ffd: scan 2-bit keys, attend what may matter")
      ->envname("LONGDECODE_METHOD")
      ->group("Attention");
  add_session_flags(*command, options->session);
  add_json_flag(*command, options->json_path);
  add_progress_flag(*command, options->progress);
  command->footer(kExamples);
  command->callback([command, options, &outcome] {
    outcome = check(*command, *options);
    if (outcome.ok()) outcome = run_perplexity(*options);
  });
}

}  // namespace longdecode::tool
