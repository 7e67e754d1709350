// From the logits of a session to text: samples, prints and feeds tokens until something ends it.
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

class Generator {
 public:
  // tokenizer outlives the object.
  Generator(const GeneratorOptions& options, const runner::Tokenizer& tokenizer,
            runner::Sampler sampler)
      : options_(options), tokenizer_(tokenizer), sampler_(std::move(sampler)) {}

  // At most max_tokens, after the session's last token. The last token of "length" is not fed.
  Result<Generated> run(int64_t max_tokens, runner::Session& session);

 private:
  Result<int32_t> next_token(const runner::Session& session);
  Status emit(const std::string& text, Generated& generated) const;

  GeneratorOptions options_;
  const runner::Tokenizer& tokenizer_;
  runner::Sampler sampler_;
  std::vector<float> logits_;
};

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_GENERATOR_H_
