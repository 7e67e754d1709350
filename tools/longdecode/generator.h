// From the logits of a session to text: samples, prints and feeds tokens until something ends it.
// Where the session's device chooses tokens itself, it does so a step ahead of the printing.
#ifndef LONGDECODE_TOOLS_GENERATOR_H_
#define LONGDECODE_TOOLS_GENERATOR_H_

#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "longdecode/status.h"
#include "runner/model/session.h"
#include "runner/sampler/sampler.h"
#include "runner/tokenizer/stream_decoder.h"
#include "runner/tokenizer/tokenizer.h"

namespace longdecode::tool {

struct GeneratorOptions {
  bool ignore_eos = false;
  bool print_text = false;                           // to stdout, as it comes
  const volatile std::sig_atomic_t* stop = nullptr;  // not 0: end after the token in progress
};

struct Generated {
  std::vector<int32_t> token_ids;  // without the token that ended the text
  std::string text;
  std::string stop_reason;   // "eos", "length" or "interrupt"
  int64_t decode_steps = 0;  // of token_ids, the first ones: so many are in the session
  double total_s = 0.0;      // decode steps, sampling and printing
  double sampling_s = 0.0;
};

// Tokens that end a text, where they are not to be chosen.
std::vector<int32_t> banned_tokens(bool ignore_eos, const runner::Tokenizer& tokenizer,
                                   int32_t vocab_size);

class Generator {
 public:
  // tokenizer outlives the object; the sampler is one of sampler_options.
  Generator(const GeneratorOptions& options, const runner::Tokenizer& tokenizer,
            const runner::SamplerOptions& sampler_options, runner::Sampler sampler)
      : options_(options),
        tokenizer_(tokenizer),
        sampler_options_(sampler_options),
        sampler_(std::move(sampler)) {}

  // At most max_tokens, after the session's last token. The last token of "length" is not fed.
  Result<Generated> run(int64_t max_tokens, runner::Session& session);

 private:
  Status run_on_host(int64_t max_tokens, runner::Session& session, Generated& generated);
  Status run_on_device(int64_t max_tokens, runner::Session& session, Generated& generated);
  Result<int32_t> next_token(const runner::Session& session);
  Status add(int32_t token, Generated& generated);
  Status emit(const std::string& text, Generated& generated) const;
  bool is_interrupted() const { return options_.stop != nullptr && *options_.stop != 0; }

  GeneratorOptions options_;
  const runner::Tokenizer& tokenizer_;
  runner::SamplerOptions sampler_options_;
  runner::Sampler sampler_;
  runner::StreamDecoder decoder_;  // of the text in progress
  std::vector<float> logits_;
};

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_GENERATOR_H_
