// Attention of a session's decode steps on the CPU: its plans, and what they report.
#ifndef LONGDECODE_RUNNER_MODEL_DECODE_ATTENTION_H_
#define LONGDECODE_RUNNER_MODEL_DECODE_ATTENTION_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "longdecode/attention.h"
#include "longdecode/status.h"
#include "runner/model/layer_plans.h"

namespace longdecode::runner {

class DecodeAttention {
 public:
  // options are resolved; format is the cache's.
  static Result<DecodeAttention> create(const ModelConfig& config, const SessionOptions& options,
                                        const KvFormat& format);

  // q, o [1, 1, num_q_heads, head_dim] fp32.
  Status run(int32_t layer_idx, const TensorView& q, const TensorView& o, const KvLayerView& kv,
             const BatchView& batch);

  // A decode step has ended: what its layers reported enters the means.
  void count_step();
  void fill(SessionStats* stats) const;

  std::string kernel_name() const { return plans_.kernel_name(); }

 private:
  explicit DecodeAttention(LayerPlans plans) : plans_(std::move(plans)) {}
  LayerPlans plans_;
  std::vector<int64_t> attended_;    // [num_kv_heads] of the last run
  std::vector<int64_t> bytes_read_;  // [num_kv_heads] of the last run
  // Of the step in progress (sums over layers), and of all finished steps (sums over steps).
  double step_kept_ = 0.0;
  double step_bytes_ = 0.0;
  double kept_ = 0.0;
  double bytes_ = 0.0;
  int64_t num_steps_ = 0;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_DECODE_ATTENTION_H_
