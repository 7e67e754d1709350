#include "runner/model/decode_attention.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"

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

}  // namespace

Result<BoundPlan> BoundPlan::create(const DecodeDesc& desc, const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN(DecodePlan plan, DecodePlan::create(desc, device));
  BoundPlan bound(std::move(plan));
  bound.workspace_.resize(static_cast<size_t>(bound.plan_.workspace_bytes()));
  LD_RETURN_IF_ERROR(bound.plan_.init(bound.workspace_.data(), nullptr));
  return bound;
}

Result<DecodeAttention> DecodeAttention::create(const ModelConfig& config,
                                                const SessionOptions& options,
                                                const KvFormat& format) {
  DecodeDesc desc;
  desc.method = options.method;
  desc.format = format;
  desc.q_dtype = DType::kF32;
  desc.num_q_heads = config.num_q_heads;
  desc.max_kv_len = options.context_len;
  desc.softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  desc.ffd = options.ffd;
  DecodeAttention attention;
  attention.softmax_scale_ = desc.softmax_scale;
  attention.plan_idx_.resize(static_cast<size_t>(config.num_layers));
  attention.attended_.resize(static_cast<size_t>(config.num_kv_heads));
  attention.bytes_read_.resize(static_cast<size_t>(config.num_kv_heads));
  LD_ASSIGN_OR_RETURN(BoundPlan main, BoundPlan::create(desc, options.device));
  attention.plans_.push_back(std::move(main));
  if (options.method != Method::kFfd) return attention;
  std::map<float, size_t> plan_of_delta;
  for (const LayerDelta& entry : layer_deltas(options)) {
    const auto [found, is_new] = plan_of_delta.try_emplace(entry.delta, attention.plans_.size());
    if (is_new) {
      desc.method = std::isinf(entry.delta) ? Method::kDense : Method::kFfd;
      desc.ffd.delta = entry.delta;
      LD_ASSIGN_OR_RETURN(BoundPlan plan, BoundPlan::create(desc, options.device));
      attention.plans_.push_back(std::move(plan));
    }
    attention.plan_idx_[static_cast<size_t>(entry.layer_idx)] = found->second;
  }
  return attention;
}

Status DecodeAttention::run(int32_t layer_idx, const TensorView& q, const TensorView& o,
                            const KvLayerView& kv, const BatchView& batch) {
  if (layer_idx == 0) step_kept_ = step_bytes_ = 0.0;
  DecodeArgs args;
  args.q = q;
  args.o = o;
  args.kv = kv;
  args.batch = batch;
  args.stats.tokens_attended = attended_.data();
  args.stats.bytes_read = bytes_read_.data();
  LD_RETURN_IF_ERROR(plans_[plan_idx_[static_cast<size_t>(layer_idx)]].plan().run(args, nullptr));
  double attended = 0.0;
  for (const int64_t tokens : attended_) attended += static_cast<double>(tokens);
  for (const int64_t num_bytes : bytes_read_) step_bytes_ += static_cast<double>(num_bytes);
  step_kept_ += attended / (static_cast<double>(attended_.size()) * batch.kv_lens[0]);
  return Status();
}

void DecodeAttention::count_step() {
  kept_ += step_kept_ / static_cast<double>(plan_idx_.size());
  bytes_ += step_bytes_;
  ++num_steps_;
}

void DecodeAttention::fill(SessionStats* stats) const {
  stats->decode_steps = num_steps_;
  if (num_steps_ == 0) return;
  stats->kept_fraction = kept_ / static_cast<double>(num_steps_);
  stats->kv_bytes_read_per_token = bytes_ / static_cast<double>(num_steps_);
}

std::string DecodeAttention::kernel_name() const {
  const KernelChoice& kernel = plans_[0].plan().kernel();
  return fmt::format("{} {}", kernel.name, kernel.isa);
}

}  // namespace longdecode::runner
