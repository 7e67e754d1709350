#include "generator.h"

#include <limits>

#include "base/errors.h"
#include "base/status_macros.h"
#include "output.h"
#include "progress.h"

namespace longdecode::tool {

std::vector<int32_t> banned_tokens(bool ignore_eos, const runner::Tokenizer& tokenizer,
                                   int32_t vocab_size) {
  std::vector<int32_t> banned;
  for (int32_t id = 0; ignore_eos && id < vocab_size; ++id) {
    if (tokenizer.is_end_of_generation(id)) banned.push_back(id);
  }
  return banned;
}

Result<Generated> Generator::run(int64_t max_tokens, runner::Session& session) {
  const Stopwatch watch;
  Generated generated;
  generated.stop_reason = "length";
  decoder_ = {};
  if (max_tokens > 0) {
    LD_RETURN_IF_ERROR(session.generates() ? run_on_device(max_tokens, session, generated)
                                           : run_on_host(max_tokens, session, generated));
  }
  LD_RETURN_IF_ERROR(emit(decoder_.flush(), generated));
  generated.total_s = watch.seconds();
  return generated;
}

Status Generator::run_on_host(int64_t max_tokens, runner::Session& session, Generated& generated) {
  while (true) {
    const Stopwatch sampling_watch;
    LD_ASSIGN_OR_RETURN(const int32_t token, next_token(session));
    generated.sampling_s += sampling_watch.seconds();
    if (tokenizer_.is_end_of_generation(token)) {
      generated.stop_reason = "eos";
      return {};
    }
    LD_RETURN_IF_ERROR(add(token, generated));
    if (static_cast<int64_t>(generated.token_ids.size()) == max_tokens) return {};
    LD_RETURN_IF_ERROR(session.decode(token));
    ++generated.decode_steps;
    if (is_interrupted()) {
      generated.stop_reason = "interrupt";
      return {};
    }
  }
}

Status Generator::run_on_device(int64_t max_tokens, runner::Session& session,
                                Generated& generated) {
  const std::vector<int32_t> banned =
      banned_tokens(options_.ignore_eos, tokenizer_, static_cast<int32_t>(session.logits().size()));
  Status emitted;
  runner::GenerateRequest request;
  request.sampler = sampler_options_;
  request.banned = banned;
  request.max_tokens = max_tokens;
  request.on_token = [&](int32_t token) {
    if (token < 0) {
      emitted = invalid_argument("none of the logits is a number above -infinity");
      return runner::TokenVerdict::kStopAndDrop;
    }
    if (tokenizer_.is_end_of_generation(token)) {
      generated.stop_reason = "eos";
      return runner::TokenVerdict::kStopAndDrop;
    }
    emitted = add(token, generated);
    if (is_interrupted()) generated.stop_reason = "interrupt";
    return emitted.ok() && !is_interrupted() ? runner::TokenVerdict::kContinue
                                             : runner::TokenVerdict::kStop;
  };
  LD_ASSIGN_OR_RETURN(generated.decode_steps, session.generate(request));
  return emitted;
}

Status Generator::add(int32_t token, Generated& generated) {
  generated.token_ids.push_back(token);
  return emit(decoder_.push(tokenizer_.decode(token)), generated);
}

Result<int32_t> Generator::next_token(const runner::Session& session) {
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

Status Generator::emit(const std::string& text, Generated& generated) const {
  generated.text += text;
  return options_.print_text && !text.empty() ? write_stdout(text) : Status();
}

}  // namespace longdecode::tool
