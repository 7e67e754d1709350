// Several prompts continued in one go: Session::generate_batch.
//
// Up to max_batch sequences are decoded together, whatever their lengths. One that ends leaves the
// batch at once, and the next prompt takes its place, in the order given; so does one for which
// there were no pages before.
#ifndef LONGDECODE_RUNNER_MODEL_BATCH_H_
#define LONGDECODE_RUNNER_MODEL_BATCH_H_

#include <cstdint>
#include <functional>
#include <span>

#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "runner/model/session.h"
#include "runner/model/step_runner.h"
#include "runner/sampler/sampler.h"

namespace longdecode::runner {

struct BatchPrompt {
  std::span<const int32_t> tokens;  // 1 or more
  int64_t max_tokens = 1;           // 1 or more; the last of so many is not fed
  uint64_t seed = 0;  // with the prompt decides what is drawn, whatever the neighbours (on CUDA
                      // within rounding)
};

struct BatchRequest {
  std::span<const BatchPrompt> prompts;
  SamplerOptions sampler;           // its seed is not used
  std::span<const int32_t> banned;  // tokens that are never chosen
  // Called with every token of a prompt, in order; tokens of different prompts mix. Anything but
  // kContinue ends the prompt, an error ends the batch. Not empty.
  std::function<Result<TokenVerdict>(int64_t prompt_idx, int32_t token)> on_token;
  // Called after each chunk of a prompt's prefill; may be empty.
  std::function<void(int64_t prompt_idx, int64_t done, int64_t total)> on_prefill;
};

// What a batch runs on; all outlive the run.
struct BatchTarget {
  int32_t vocab_size = 0;
  int64_t context_len = 0;
  int32_t max_batch = 1;
  int32_t prefill_chunk = 1;
  KvCache* cache = nullptr;  // without sequences
  StepRunner* runner = nullptr;
  StepTimes* prefill_times = nullptr;
  StepTimes* decode_times = nullptr;
};

// Before any work. Errors name the prompt by its index.
Status check_batch(const BatchRequest& request, const BatchTarget& target);

// Of a request that was checked. No sequence is left in the cache.
Status run_batch(const BatchRequest& request, const BatchTarget& target);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_BATCH_H_
