// Decode steps that feed themselves: the device chooses each token and the next step takes it from
// there, while the host stays ahead.
#ifndef LONGDECODE_RUNNER_GPU_DECODE_LOOP_H_
#define LONGDECODE_RUNNER_GPU_DECODE_LOOP_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "runner/gpu/gpu_decoder.h"
#include "runner/gpu/step_graphs.h"

namespace longdecode::runner {

struct DecodeLoopRequest {
  SamplerOptions sampler;           // its seed is not used
  std::span<const uint64_t> seeds;  // one for each sequence; may be empty at temperature 0
  int64_t max_steps = 0;
  // The logits on the device give the first token, which is reported too; else the ids fed to the
  // first step are there already.
  bool samples_first = true;
  // Called for each token of the batch's sequences in turn, one step after it was chosen, in order;
  // empty: the host never waits for a token. `row` has one id for each sequence.
  std::function<TokenVerdict(std::span<const int32_t> row)> on_tokens;
  // What was chosen before the device heard of a verdict stays, and is reported: on_tokens is
  // called once more after it has stopped the run.
  bool keeps_later_tokens = false;
};

struct DecodeLoopResult {
  int64_t num_steps = 0;          // that the sequences have now
  bool logits_are_later = false;  // the logits on the device are of a step that was taken back
};

// Not for concurrent use.
class DecodeLoop {
 public:
  // All outlive the object.
  static Result<std::unique_ptr<DecodeLoop>> create(GpuDecoder* decoder, StepGraphs* graphs,
                                                    KvCache* cache);
  ~DecodeLoop();
  DecodeLoop(const DecodeLoop&) = delete;
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  // Every sequence has room for max_steps more tokens. On return the steps are committed and done.
  Result<DecodeLoopResult> run(std::span<const SequenceId> sequences,
                               const DecodeLoopRequest& request);

  // One step without sampling, fed with `ids`; enqueued, committed, not waited for.
  Status step(std::span<const SequenceId> sequences, std::span<const int32_t> ids);

 private:
  // Pages and lengths are reserved for so many steps at once, then committed.
  static constexpr int64_t kWindowSteps = 128;

  DecodeLoop(GpuDecoder* decoder, StepGraphs* graphs, KvCache* cache)
      : decoder_(decoder), graphs_(graphs), cache_(cache) {}
  Result<DecodeLoopResult> run_steps(std::span<const SequenceId> sequences,
                                     const DecodeLoopRequest& request);
  Status upload_lens(std::span<const SequenceId> sequences);
  Status upload_choices(const DecodeLoopRequest& request);
  Status sample_first(const DecodeLoopRequest& request);
  Status record_choice();
  Result<TokenVerdict> deliver_next(const DecodeLoopRequest& request);
  Status reserve(std::span<const SequenceId> sequences, int64_t num_steps);
  Status commit(int64_t num_steps);
  Status launch(const StepKind& kind, int64_t longest_kv_len);
  Status finish(std::span<const SequenceId> sequences, int64_t surplus, int64_t window_steps);

  GpuDecoder* decoder_;
  StepGraphs* graphs_;
  KvCache* cache_;
  cudaEvent_t chosen_[2] = {};  // token i is in the history: event i % 2
  int64_t reserved_steps_ = 0;  // of the window
  // Of this run.
  int32_t batch_ = 0;
  std::vector<int32_t> lens_;   // [batch]: of its first step, that step's token included
  int64_t longest_kv_len_ = 0;  // the largest of them
  std::vector<int32_t> first_;  // [batch]: positions of the first tokens chosen
  std::vector<int32_t> row_;    // [batch]: the tokens reported last
  int64_t num_chosen_ = 0;      // tokens that are, or will be, in the history
  int64_t num_delivered_ = 0;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_DECODE_LOOP_H_
