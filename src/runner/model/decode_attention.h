// Attention of a session's decode steps: its plans, their workspaces and what they report.
#ifndef LONGDECODE_RUNNER_MODEL_DECODE_ATTENTION_H_
#define LONGDECODE_RUNNER_MODEL_DECODE_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "longdecode/attention.h"
#include "longdecode/status.h"
#include "runner/model/config.h"
#include "runner/model/session.h"

namespace longdecode::runner {

// A plan with its workspace. CPU memory.
class BoundPlan {
 public:
  static Result<BoundPlan> create(const DecodeDesc& desc, const DeviceInfo& device);
  DecodePlan& plan() { return plan_; }
  const DecodePlan& plan() const { return plan_; }

 private:
  explicit BoundPlan(DecodePlan plan) : plan_(std::move(plan)) {}
  DecodePlan plan_;
  std::vector<std::byte> workspace_;  // moves keep its address
};

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

  float softmax_scale() const { return softmax_scale_; }
  std::string kernel_name() const;

 private:
  DecodeAttention() = default;
  std::vector<BoundPlan> plans_;     // [0] is the session's method; the rest serve single layers
  std::vector<size_t> plan_idx_;     // [num_layers] into plans_
  std::vector<int64_t> attended_;    // [num_kv_heads] of the last run
  std::vector<int64_t> bytes_read_;  // [num_kv_heads] of the last run
  float softmax_scale_ = 0.0f;
  // Of the step in progress (sums over layers), and of all finished steps (sums over steps).
  double step_kept_ = 0.0;
  double step_bytes_ = 0.0;
  double kept_ = 0.0;
  double bytes_ = 0.0;
  int64_t num_steps_ = 0;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_DECODE_ATTENTION_H_
