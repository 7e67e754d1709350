// The decode plans of a model's layers on one device, with their workspaces.
#ifndef LONGDECODE_RUNNER_MODEL_LAYER_PLANS_H_
#define LONGDECODE_RUNNER_MODEL_LAYER_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cache/device_buffer.h"
#include "longdecode/attention.h"
#include "longdecode/status.h"
#include "runner/model/config.h"
#include "runner/model/session.h"

namespace longdecode::runner {

// A plan with its workspace on the device.
class BoundPlan {
 public:
  static Result<BoundPlan> create(const DecodeDesc& desc, const DeviceInfo& device,
                                  StreamHandle stream);
  DecodePlan& plan() { return plan_; }
  const DecodePlan& plan() const { return plan_; }

 private:
  explicit BoundPlan(DecodePlan plan) : plan_(std::move(plan)) {}
  DecodePlan plan_;
  DeviceBuffer workspace_;
};

// What every layer's descriptor has; the rest is in the options.
struct LayerPlanShape {
  DType q_dtype = DType::kF32;
  int32_t max_batch = 1;
  int32_t max_query_len = 1;
};

// Layers of one method and delta share a plan: they run one after the other.
class LayerPlans {
 public:
  // Whether the device has kernels for the layers. Touches no device.
  static Status check(const ModelConfig& config, const SessionOptions& options,
                      const KvFormat& format, const LayerPlanShape& shape);
  // options are resolved; format is the cache's. The workspaces are ready in stream order.
  static Result<LayerPlans> create(const ModelConfig& config, const SessionOptions& options,
                                   const KvFormat& format, const LayerPlanShape& shape,
                                   StreamHandle stream);

  DecodePlan& of_layer(int32_t layer_idx) {
    return plans_[plan_idx_[static_cast<size_t>(layer_idx)]].plan();
  }
  int32_t num_layers() const { return static_cast<int32_t>(plan_idx_.size()); }
  // Of the session's method: "cpu/gqa_decode avx512" and the like.
  std::string kernel_name() const;

 private:
  LayerPlans() = default;
  std::vector<BoundPlan> plans_;  // [0] is the session's method; the rest serve single layers
  std::vector<size_t> plan_idx_;  // [num_layers] into plans_
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_LAYER_PLANS_H_
