#include "runner/model/layer_plans.h"

#include <cmath>
#include <limits>
#include <map>

#include "base/errors.h"
#include "base/status_macros.h"
#include "ops/backends.h"

namespace longdecode::runner {
namespace {

// Dense layers among them: no token is dropped at an infinite delta.
std::vector<LayerDelta> layer_deltas(const SessionOptions& options) {
  std::vector<LayerDelta> deltas = options.layer_deltas;
  for (const int32_t layer : options.dense_layers) {
    deltas.push_back({layer, std::numeric_limits<float>::infinity()});
  }
  return deltas;
}

// Of the session's method.
DecodeDesc main_desc(const ModelConfig& config, const SessionOptions& options,
                     const KvFormat& format, const LayerPlanShape& shape) {
  DecodeDesc desc;
  desc.method = options.method;
  desc.format = format;
  desc.q_dtype = shape.q_dtype;
  desc.num_q_heads = config.num_q_heads;
  desc.max_batch = shape.max_batch;
  desc.max_query_len = shape.max_query_len;
  desc.max_kv_len = options.context_len;
  desc.softmax_scale = config.softmax_scale();
  desc.ffd = options.ffd;
  return desc;
}

DecodeDesc with_delta(DecodeDesc desc, float delta) {
  desc.method = std::isinf(delta) ? Method::kDense : Method::kFfd;
  desc.ffd.delta = delta;
  return desc;
}

}  // namespace

Result<BoundPlan> BoundPlan::create(const DecodeDesc& desc, const DeviceInfo& device,
                                    StreamHandle stream) {
  LD_ASSIGN_OR_RETURN(DecodePlan plan, DecodePlan::create(desc, device));
  BoundPlan bound(std::move(plan));
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(device.type));
  LD_ASSIGN_OR_RETURN(bound.workspace_,
                      DeviceBuffer::create(bound.plan_.workspace_bytes(), *backend, device));
  LD_RETURN_IF_ERROR(bound.plan_.init(bound.workspace_.data(), stream));
  return bound;
}

Status LayerPlans::check(const ModelConfig& config, const SessionOptions& options,
                         const KvFormat& format, const LayerPlanShape& shape) {
  const DecodeDesc main = main_desc(config, options, format, shape);
  LD_RETURN_IF_ERROR(select_kernel(main, options.device).status());
  if (options.method != Method::kFfd) return Status();
  for (const LayerDelta& entry : layer_deltas(options)) {
    LD_RETURN_IF_ERROR(select_kernel(with_delta(main, entry.delta), options.device).status());
  }
  return Status();
}

Result<LayerPlans> LayerPlans::create(const ModelConfig& config, const SessionOptions& options,
                                      const KvFormat& format, const LayerPlanShape& shape,
                                      StreamHandle stream) {
  const DecodeDesc desc = main_desc(config, options, format, shape);
  LayerPlans plans;
  plans.plan_idx_.resize(static_cast<size_t>(config.num_layers));
  LD_ASSIGN_OR_RETURN(BoundPlan main, BoundPlan::create(desc, options.device, stream));
  plans.plans_.push_back(std::move(main));
  if (options.method != Method::kFfd) return plans;
  std::map<float, size_t> plan_of_delta;
  for (const LayerDelta& entry : layer_deltas(options)) {
    const auto [found, is_new] = plan_of_delta.try_emplace(entry.delta, plans.plans_.size());
    if (is_new) {
      LD_ASSIGN_OR_RETURN(BoundPlan plan,
                          BoundPlan::create(with_delta(desc, entry.delta), options.device, stream));
      plans.plans_.push_back(std::move(plan));
    }
    plans.plan_idx_[static_cast<size_t>(entry.layer_idx)] = found->second;
  }
  return plans;
}

std::string LayerPlans::kernel_name() const {
  const KernelChoice& kernel = plans_[0].plan().kernel();
  return fmt::format("{} {}", kernel.name, kernel.isa);
}

}  // namespace longdecode::runner
