#include "runner/model/decode_attention.h"

#include "base/status_macros.h"

namespace longdecode::runner {

Result<DecodeAttention> DecodeAttention::create(const ModelConfig& config,
                                                const SessionOptions& options,
                                                const KvFormat& format) {
  LD_ASSIGN_OR_RETURN(LayerPlans plans, LayerPlans::create(config, options, format, {}, nullptr));
  DecodeAttention attention(std::move(plans));
  attention.attended_.resize(static_cast<size_t>(config.num_kv_heads));
  attention.bytes_read_.resize(static_cast<size_t>(config.num_kv_heads));
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
  LD_RETURN_IF_ERROR(plans_.of_layer(layer_idx).run(args, nullptr));
  double attended = 0.0;
  for (const int64_t tokens : attended_) attended += static_cast<double>(tokens);
  for (const int64_t num_bytes : bytes_read_) step_bytes_ += static_cast<double>(num_bytes);
  step_kept_ += attended / (static_cast<double>(attended_.size()) * batch.kv_lens[0]);
  return Status();
}

void DecodeAttention::count_step() {
  kept_ += step_kept_ / plans_.num_layers();
  bytes_ += step_bytes_;
  ++num_steps_;
}

void DecodeAttention::fill(SessionStats* stats) const {
  stats->decode_steps = num_steps_;
  if (num_steps_ == 0) return;
  stats->kept_fraction = kept_ / static_cast<double>(num_steps_);
  stats->kv_bytes_read_per_token = bytes_ / static_cast<double>(num_steps_);
}

}  // namespace longdecode::runner
