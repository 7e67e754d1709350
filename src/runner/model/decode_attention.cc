#include "runner/model/decode_attention.h"

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::runner {

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
  LD_ASSIGN_OR_RETURN(BoundPlan main, BoundPlan::create(desc, options.device));
  DecodeAttention attention(std::move(main));
  attention.softmax_scale_ = desc.softmax_scale;
  attention.is_dense_.resize(static_cast<size_t>(config.num_layers));
  attention.attended_.resize(static_cast<size_t>(config.num_kv_heads));
  attention.bytes_read_.resize(static_cast<size_t>(config.num_kv_heads));
  if (options.method == Method::kFfd && !options.dense_layers.empty()) {
    for (const int32_t layer : options.dense_layers) {
      attention.is_dense_[static_cast<size_t>(layer)] = true;
    }
    desc.method = Method::kDense;
    LD_ASSIGN_OR_RETURN(BoundPlan dense, BoundPlan::create(desc, options.device));
    attention.dense_ = std::move(dense);
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
  const bool dense = is_dense_[static_cast<size_t>(layer_idx)];
  LD_RETURN_IF_ERROR((dense ? *dense_ : main_).plan().run(args, nullptr));
  double attended = 0.0;
  for (const int64_t tokens : attended_) attended += static_cast<double>(tokens);
  for (const int64_t num_bytes : bytes_read_) step_bytes_ += static_cast<double>(num_bytes);
  step_kept_ += attended / (static_cast<double>(attended_.size()) * batch.kv_lens[0]);
  return Status();
}

void DecodeAttention::count_step() {
  kept_ += step_kept_ / static_cast<double>(is_dense_.size());
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
  const KernelChoice& kernel = main_.plan().kernel();
  return fmt::format("{} {}", kernel.name, kernel.isa);
}

}  // namespace longdecode::runner
