#include "runner/gpu/gpu_prefill.h"

#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "ops/backends.h"

namespace longdecode::runner {

cuda::RopeModel rope_model(const ModelConfig& config, const DeviceWeights& weights,
                           const DeviceLayer& layer) {
  cuda::RopeModel model;
  model.num_q_heads = config.num_q_heads;
  model.num_kv_heads = config.num_kv_heads;
  model.head_dim = config.head_dim;
  model.rope_dim = config.rope_dim;
  model.adjacent_pairs = config.rope_pairs == RopePairs::kAdjacent;
  model.frequencies = weights.rope_frequencies;
  model.q_norm = layer.q_norm;
  model.k_norm = layer.k_norm;
  model.norm_eps = config.rms_eps;
  return model;
}

auto GpuPrefill::create(const ModelConfig& config, const DeviceWeights& weights,
                        const DeviceInfo& device, int64_t max_tokens, cudaStream_t stream)
    -> Result<std::unique_ptr<GpuPrefill>> {
  LD_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Gemm> gemm, cuda::Gemm::create(device));
  std::unique_ptr<GpuPrefill> prefill(
      new GpuPrefill(config, weights, device, std::move(gemm), stream));
  LD_RETURN_IF_ERROR(prefill->allocate(max_tokens));
  return prefill;
}

Status GpuPrefill::allocate(int64_t max_tokens) {
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(DeviceType::kCuda));
  const auto make = [&](DeviceBuffer* buffer, int64_t num_bytes) -> Status {
    LD_ASSIGN_OR_RETURN(*buffer, DeviceBuffer::create(num_bytes, *backend, device_));
    return Status();
  };
  LD_RETURN_IF_ERROR(make(&workspace_, gemm_->workspace_bytes()));
  LD_RETURN_IF_ERROR(make(&x_, 4 * max_tokens * config_.hidden_dim));
  LD_RETURN_IF_ERROR(make(&normed_, 2 * max_tokens * config_.hidden_dim));
  LD_RETURN_IF_ERROR(make(&qkv_, 4 * max_tokens * (config_.q_dim() + 2 * config_.kv_dim())));
  for (DeviceBuffer* buffer : {&q_, &o_}) {
    LD_RETURN_IF_ERROR(make(buffer, 2 * max_tokens * config_.q_dim()));
  }
  for (DeviceBuffer* buffer : {&k_, &v_}) {
    LD_RETURN_IF_ERROR(make(buffer, 2 * max_tokens * config_.kv_dim()));
  }
  LD_RETURN_IF_ERROR(make(&gate_up_, 4 * max_tokens * config_.ffn_dim));
  return make(&activations_, 2 * max_tokens * config_.ffn_dim);
}

Status GpuPrefill::enqueue(const int32_t* ids, int64_t count, KvCache* cache) {
  LD_RETURN_IF_ERROR(cuda::embed({ids, weights_.token_embedding, x_.as<float>(), count,
                                  config_.vocab_size, config_.hidden_dim},
                                 device_, stream_));
  for (int32_t l = 0; l < config_.num_layers; ++l) {
    LD_RETURN_IF_ERROR(attend(l, count, cache));
    LD_RETURN_IF_ERROR(feed_forward(weights_.layers[static_cast<size_t>(l)], count));
  }
  return Status();
}

Status GpuPrefill::attend(int32_t layer_idx, int64_t count, KvCache* cache) {
  const DeviceLayer& layer = weights_.layers[static_cast<size_t>(layer_idx)];
  LD_RETURN_IF_ERROR(norm(layer.attn_norm, count));
  cuda::GemmArgs qkv;
  qkv.weight = layer.qkv;
  qkv.x = normed_.as<uint16_t>();
  qkv.bias = layer.qkv_bias;
  qkv.y = qkv_.data();
  qkv.num_rows = config_.q_dim() + 2 * config_.kv_dim();
  qkv.num_cols = config_.hidden_dim;
  qkv.num_tokens = count;
  LD_RETURN_IF_ERROR(multiply(qkv));
  cuda::RopeArgs rope;
  rope.model = rope_model(config_, weights_, layer);
  rope.batch = cache->step();
  rope.batch.query_lens = nullptr;
  rope.query_len = static_cast<int32_t>(count);
  rope.qkv = qkv_.as<float>();
  rope.q = q_.as<uint16_t>();
  rope.k = k_.as<uint16_t>();
  rope.v = v_.as<uint16_t>();
  LD_RETURN_IF_ERROR(cuda::rope(rope, device_, stream_));
  const auto new_rows = [&](const DeviceBuffer& buffer) {
    return TensorView::contiguous(buffer.data(), DType::kBF16,
                                  {1, count, config_.num_kv_heads, config_.head_dim});
  };
  LD_RETURN_IF_ERROR(cache->append(layer_idx, new_rows(k_), new_rows(v_), stream_));
  PrefillArgs args;
  args.q = TensorView::contiguous(q_.data(), DType::kBF16,
                                  {count, config_.num_q_heads, config_.head_dim});
  args.o = args.q;
  args.o.data = o_.data();
  args.kv = cache->layer(layer_idx);
  args.batch = cache->step();
  args.softmax_scale = config_.softmax_scale();
  LD_RETURN_IF_ERROR(prefill_attention(args, device_, stream_));
  cuda::GemmArgs output;
  output.weight = layer.attn_output;
  output.x = o_.as<uint16_t>();
  output.output = cuda::LinearOutput::kAddF32;
  output.y = x_.data();
  output.num_rows = config_.hidden_dim;
  output.num_cols = config_.q_dim();
  output.num_tokens = count;
  return multiply(output);
}

Status GpuPrefill::feed_forward(const DeviceLayer& layer, int64_t count) {
  LD_RETURN_IF_ERROR(norm(layer.ffn_norm, count));
  cuda::GemmArgs gate_up;
  gate_up.weight = layer.gate_up;
  gate_up.x = normed_.as<uint16_t>();
  gate_up.output = cuda::LinearOutput::kStoreBf16;
  gate_up.y = gate_up_.data();
  gate_up.num_rows = 2 * int64_t{config_.ffn_dim};
  gate_up.num_cols = config_.hidden_dim;
  gate_up.num_tokens = count;
  LD_RETURN_IF_ERROR(multiply(gate_up));
  LD_RETURN_IF_ERROR(
      cuda::silu_up({gate_up_.as<uint16_t>(), activations_.as<uint16_t>(), count, config_.ffn_dim},
                    device_, stream_));
  cuda::GemmArgs down;
  down.weight = layer.ffn_down;
  down.x = activations_.as<uint16_t>();
  down.output = cuda::LinearOutput::kAddF32;
  down.y = x_.data();
  down.num_rows = config_.hidden_dim;
  down.num_cols = config_.ffn_dim;
  down.num_tokens = count;
  return multiply(down);
}

Status GpuPrefill::norm(const float* weight, int64_t count) {
  return cuda::rms_norm(
      {x_.as<float>(), weight, config_.rms_eps, normed_.as<uint16_t>(), count, config_.hidden_dim},
      device_, stream_);
}

Status GpuPrefill::multiply(cuda::GemmArgs args) {
  return gemm_->run(args, workspace_.data(), stream_);
}

}  // namespace longdecode::runner
