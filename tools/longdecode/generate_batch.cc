#include "generate_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "generate_report.h"
#include "generate_session.h"
#include "generator.h"
#include "model_file.h"
#include "output.h"
#include "progress.h"
#include "prompt.h"
#include "runner/model/batch.h"
#include "runner/tokenizer/stream_decoder.h"

namespace longdecode::tool {
namespace {

// A prompt and its text so far.
struct Continued {
  std::vector<int32_t> prompt_ids;
  int64_t num_predict = 0;
  bool has_ended = false;
  runner::StreamDecoder decoder;
  PromptResult result;
};

// Prints the texts one after the other, each from its first token on once those before it have
// ended.
class TextsInOrder {
 public:
  explicit TextsInOrder(bool prints) : prints_(prints) {}

  // `piece` has come to the text of prompt_idx.
  Status add(const std::vector<Continued>& all, size_t prompt_idx, const std::string& piece) {
    if (!prints_ || prompt_idx != first_) return {};
    return write_stdout(has_header_ ? piece : header(all));
  }

  // A prompt has ended.
  Status end(const std::vector<Continued>& all) {
    while (prints_ && first_ < all.size() && all[first_].has_ended) {
      LD_RETURN_IF_ERROR(write_stdout((has_header_ ? "" : header(all)) + "\n"));
      ++first_;
      has_header_ = false;
      if (first_ == all.size()) break;
      LD_RETURN_IF_ERROR(write_stdout("\n"));
      if (!all[first_].result.text.empty()) LD_RETURN_IF_ERROR(write_stdout(header(all)));
    }
    return {};
  }

 private:
  // And the text so far.
  std::string header(const std::vector<Continued>& all) {
    has_header_ = true;
    const PromptResult& result = all[first_].result;
    const std::string file = result.file.empty() ? "" : fmt::format(" ({})", one_line(result.file));
    return fmt::format("--- prompt {}{} ---\n{}", first_, file, result.text);
  }

  bool prints_;
  size_t first_ = 0;  // that is being printed
  bool has_header_ = false;
};

class BatchGenerator {
 public:
  BatchGenerator(const GenerateOptions& options, const runner::Tokenizer& tokenizer,
                 std::vector<Continued> all, bool prints)
      : options_(options), tokenizer_(tokenizer), all_(std::move(all)), texts_(prints) {}

  Status run(int32_t vocab_size, runner::Session& session) {
    std::vector<runner::BatchPrompt> prompts;
    for (const Continued& one : all_) {
      prompts.push_back({one.prompt_ids, one.num_predict, one.result.seed});
    }
    const std::vector<int32_t> banned = banned_tokens(options_.ignore_eos, tokenizer_, vocab_size);
    runner::BatchRequest request;
    request.prompts = prompts;
    request.sampler = options_.sampler;
    request.banned = banned;
    request.on_token = [this](int64_t prompt_idx, int32_t token) {
      return add(static_cast<size_t>(prompt_idx), token);
    };
    std::optional<Progress> bar;
    request.on_prefill = [&](int64_t prompt_idx, int64_t done, int64_t total) {
      if (!bar) bar.emplace(fmt::format("prefill of prompt {}", prompt_idx), options_.progress);
      (*bar)(done, total);
      if (done == total) bar.reset();
    };
    return session.generate_batch(request);
  }

  std::vector<PromptResult> results() {
    std::vector<PromptResult> results;
    for (Continued& one : all_) results.push_back(std::move(one.result));
    return results;
  }

 private:
  Result<runner::TokenVerdict> add(size_t prompt_idx, int32_t token) {
    Continued& one = all_[prompt_idx];
    PromptResult& result = one.result;
    std::string piece;
    if (tokenizer_.is_end_of_generation(token)) {
      result.stop_reason = "eos";
      one.has_ended = true;
    } else {
      result.token_ids.push_back(token);
      piece = one.decoder.push(tokenizer_.decode(token));
      one.has_ended = static_cast<int64_t>(result.token_ids.size()) == one.num_predict;
    }
    if (one.has_ended) piece += one.decoder.flush();
    result.text += piece;
    LD_RETURN_IF_ERROR(texts_.add(all_, prompt_idx, piece));
    if (!one.has_ended) return runner::TokenVerdict::kContinue;
    LD_RETURN_IF_ERROR(texts_.end(all_));
    return runner::TokenVerdict::kStop;
  }

  const GenerateOptions& options_;
  const runner::Tokenizer& tokenizer_;
  std::vector<Continued> all_;
  TextsInOrder texts_;
};

// Tokens, room and seed of every prompt.
Result<std::vector<Continued>> encode_prompts(const GenerateOptions& options, uint64_t seed,
                                              const std::vector<std::string>& texts,
                                              const runner::Model& model,
                                              const runner::Tokenizer& tokenizer) {
  std::vector<Continued> all(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    LD_ASSIGN_OR_RETURN(auto encoding,
                        encode_prompt(options.prompt, i, texts[i], model.file(), tokenizer));
    Continued& one = all[i];
    one.prompt_ids = std::move(encoding.ids);
    const auto count = static_cast<int64_t>(one.prompt_ids.size());
    LD_ASSIGN_OR_RETURN(const PromptRoom room, fit_context(options, prompt_name(options.prompt, i),
                                                           count, model.config().context_len));
    one.num_predict = room.num_predict;
    one.result.prompt_tokens = count;
    one.result.seed = prompt_seed(seed, i);
    one.result.stop_reason = room.num_predict < options.num_predict ? "context" : "length";
    if (!options.prompt.file_paths.empty()) one.result.file = options.prompt.file_paths[i];
  }
  return all;
}

void note_cut_texts(const std::vector<PromptResult>& results, const GenerateOptions& options) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].stop_reason != "context") continue;
    print_note(fmt::format("the text of {} ends early: the context is full (-c, -n {})",
                           prompt_name(options.prompt, i), options.num_predict));
  }
}

}  // namespace

Status run_generate_batch(const GenerateOptions& options) {
  LD_ASSIGN_OR_RETURN(const JsonOutput output,
                      JsonOutput::open(options.json_path, input_paths(options.prompt)));
  std::vector<std::string> texts;
  for (size_t i = 0; i < num_prompts(options.prompt); ++i) {
    LD_ASSIGN_OR_RETURN(std::string text, read_prompt(options.prompt, i));
    texts.push_back(std::move(text));
  }
  BatchResult result;
  Stopwatch watch;
  LD_ASSIGN_OR_RETURN(const auto model, load_model(options.prompt.model_path));
  LD_RETURN_IF_ERROR(check_layers(options.session, model->config()));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, model_tokenizer(model->file()));
  result.run.load_s = watch.lap();
  result.run.seed = choose_seed(options.seed);
  LD_ASSIGN_OR_RETURN(std::vector<Continued> all,
                      encode_prompts(options, result.run.seed, texts, *model, tokenizer));
  result.run.tokenize_s = watch.lap();

  BatchRoom room;
  room.parallel = options.parallel;
  for (const Continued& one : all) {
    room.lengths.push_back(static_cast<int64_t>(one.prompt_ids.size()) + one.num_predict);
  }
  const int64_t longest = *std::max_element(room.lengths.begin(), room.lengths.end());
  LD_ASSIGN_OR_RETURN(
      auto session,
      open_generate_session(options, model, std::max(longest, options.context_len), room));
  result.run.load_s += watch.lap();

  BatchGenerator generator(options, tokenizer, std::move(all), !output.is_stdout());
  LD_RETURN_IF_ERROR(generator.run(model->config().vocab_size, session));
  result.total_s = watch.lap();
  result.prompts = generator.results();
  note_cut_texts(result.prompts, options);
  fill_result(options, session, result.run);
  result.run.model_name = model->config().name;
  result.parallel = session.options().max_batch;
  finish(result);
  LD_RETURN_IF_ERROR(output.write(report_json(result)));
  write_stderr(report_table(result));
  if (options.verbose) write_stderr(timing_table(result.run));
  return {};
}

}  // namespace longdecode::tool
