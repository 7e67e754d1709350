// What a session runs its steps on: the layers of the model on one device.
#ifndef LONGDECODE_RUNNER_MODEL_STEP_RUNNER_H_
#define LONGDECODE_RUNNER_MODEL_STEP_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "runner/model/session.h"

namespace longdecode::runner {

struct Generation {
  int64_t num_fed = 0;
  // The sequence went further on the device than its tokens do now: the logits that are there
  // belong to a token that was taken back.
  bool logits_are_later = false;
};

// Tokens that follow a sequence.
struct ModelStep {
  std::span<const int32_t> tokens;
  int64_t first_position = 0;
  bool is_decode = false;      // one token, through the decode kernel of the session's method
  float* logits = nullptr;     // [vocab_size] of the last token, host memory; nullptr: none wanted
  StepTimes* times = nullptr;  // gets the seconds; total_s is the caller's
};

// A sequence of a batch, between two of its steps.
struct BatchMember {
  SequenceId sequence = 0;
  uint64_t seed = 0;
  int32_t token = 0;  // the last one chosen; not fed yet
};

// Not for concurrent use.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Appends the tokens to the sequence in the cache and commits them. The logits are there when it
  // returns.
  virtual Status run(const ModelStep& step, SequenceId sequence) = 0;

  // Session::generate for a sequence of the cache; commits what it feeds.
  virtual bool generates() const { return false; }
  // logits [vocab_size] become those of the last token fed, unless logits_are_later.
  virtual Result<Generation> generate(const GenerateRequest& request, SequenceId sequence,
                                      float* logits);

  // A batch of sequences, from begin_batch to end_batch; `banned` is valid until then. The
  // sampler's seed is not used: every member has its own.
  virtual Status begin_batch(const SamplerOptions& sampler, std::span<const int32_t> banned) = 0;
  // The first token of a sequence that `run` has just prefilled, whose logits are given.
  virtual Result<int32_t> choose_first(const BatchMember& member, const float* logits,
                                       StepTimes* times) = 0;
  // Feeds every member its token and chooses its next one, and so on, max_steps times. on_row gets
  // the tokens of each step, one for each member. After it has returned false, at most one row
  // follows, which was under way. In the end every member's last token is not fed yet.
  using OnRow = std::function<bool(std::span<const int32_t> row)>;
  virtual Status decode_batch(std::span<const BatchMember> members, int64_t max_steps,
                              const OnRow& on_row, StepTimes* times) = 0;
  virtual void end_batch() {}

  // decode_steps, kept_fraction and kv_bytes_read_per_token.
  virtual void fill(SessionStats* stats) const = 0;
  virtual std::string kernel_name() const = 0;
};

// model and options (resolved) are kept; the cache outlives the runner. Those of the GPU are there
// in builds with the CUDA backend; the check, whether the device has kernels for the model at all,
// comes before any memory is asked for.
Result<std::unique_ptr<StepRunner>> make_cpu_step_runner(std::shared_ptr<const Model> model,
                                                         const SessionOptions& options,
                                                         KvCache* cache);
Result<std::unique_ptr<StepRunner>> make_gpu_step_runner(std::shared_ptr<const Model> model,
                                                         const SessionOptions& options,
                                                         KvCache* cache);
Status check_gpu_model(const ModelConfig& config, const SessionOptions& options,
                       const KvFormat& format);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_STEP_RUNNER_H_
