#include "generator.h"

#include <limits>

#include "base/status_macros.h"
#include "output.h"
#include "progress.h"
#include "runner/tokenizer/stream_decoder.h"

namespace longdecode::tool {

Result<Generated> Generator::run(int64_t max_tokens, runner::Session& session) {
  const Stopwatch watch;
  Generated generated;
  generated.stop_reason = "length";
  runner::StreamDecoder decoder;
  while (static_cast<int64_t>(generated.token_ids.size()) < max_tokens) {
    const Stopwatch sampling_watch;
    LD_ASSIGN_OR_RETURN(const int32_t token, next_token(session));
    generated.sampling_s += sampling_watch.seconds();
    if (tokenizer_.is_end_of_generation(token)) {
      generated.stop_reason = "eos";
      break;
    }
    generated.token_ids.push_back(token);
    LD_RETURN_IF_ERROR(emit(decoder.push(tokenizer_.decode(token)), generated));
    if (static_cast<int64_t>(generated.token_ids.size()) == max_tokens) break;
    LD_RETURN_IF_ERROR(session.decode(token));
    ++generated.decode_steps;
    if (options_.stop != nullptr && *options_.stop != 0) {
      generated.stop_reason = "interrupt";
      break;
    }
  }
  LD_RETURN_IF_ERROR(emit(decoder.flush(), generated));
  generated.total_s = watch.seconds();
  return generated;
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
