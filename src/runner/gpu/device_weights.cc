#include "runner/gpu/device_weights.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/host/status.h"
#include "ops/backends.h"
#include "runner/gpu/fill.h"
#include "runner/model/weights.h"

namespace longdecode::runner {
namespace {

// Hands out pieces of one allocation; from nullptr it only counts.
class Arena {
 public:
  explicit Arena(uint8_t* base) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    constexpr int64_t kAlignment = 256;
    auto* piece = reinterpret_cast<T*>(base_ == nullptr ? nullptr : base_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  int64_t used_bytes() const { return used_; }

 private:
  uint8_t* base_;
  int64_t used_ = 0;
};

int64_t lay_out(const ModelConfig& config, const WeightParts& parts, uint8_t* base,
                DeviceWeights* weights) {
  const int64_t hidden = config.hidden_dim;
  const int64_t qkv_dim = config.q_dim() + 2 * config.kv_dim();
  Arena arena(base);
  weights->token_embedding = arena.take<uint16_t>(config.vocab_size * hidden);
  weights->output =
      parts.tied ? weights->token_embedding : arena.take<uint16_t>(config.vocab_size * hidden);
  weights->output_norm = arena.take<float>(hidden);
  weights->rope_frequencies = arena.take<double>(config.rope_dim / 2);
  weights->layers.assign(static_cast<size_t>(config.num_layers), {});
  for (DeviceLayer& layer : weights->layers) {
    layer.attn_norm = arena.take<float>(hidden);
    layer.qkv = arena.take<uint16_t>(qkv_dim * hidden);
    if (parts.qkv_bias) layer.qkv_bias = arena.take<float>(qkv_dim);
    if (config.has_qk_norm) {
      layer.q_norm = arena.take<float>(config.head_dim);
      layer.k_norm = arena.take<float>(config.head_dim);
    }
    layer.attn_output = arena.take<uint16_t>(hidden * config.q_dim());
    layer.ffn_norm = arena.take<float>(hidden);
    layer.gate_up = arena.take<uint16_t>(2 * int64_t{config.ffn_dim} * hidden);
    layer.ffn_down = arena.take<uint16_t>(hidden * config.ffn_dim);
  }
  return arena.used_bytes();
}

}  // namespace

int64_t DeviceWeights::step_bytes(const ModelConfig& config) const {
  const int64_t layer_weights =
      int64_t{config.hidden_dim} *
      (2 * config.q_dim() + 2 * config.kv_dim() + 3 * int64_t{config.ffn_dim});
  return 2 * (config.num_layers * layer_weights + int64_t{config.vocab_size} * config.hidden_dim);
}

Result<DeviceWeights> allocate_weights(const ModelConfig& config, const WeightParts& parts,
                                       const DeviceInfo& device) {
  DeviceWeights weights;
  weights.memory_bytes = lay_out(config, parts, nullptr, &weights);
  const cuda::DeviceGuard guard(device.device_idx);
  LD_RETURN_IF_ERROR(guard.status());
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  LD_RETURN_IF_ERROR(
      cuda::cuda_status(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  if (weights.memory_bytes > static_cast<int64_t>(free_bytes)) {
    return out_of_memory("the weights need {} bytes of GPU memory in bf16; {} of {} are free",
                         weights.memory_bytes, free_bytes, total_bytes);
  }
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(DeviceType::kCuda));
  LD_ASSIGN_OR_RETURN(weights.memory, DeviceBuffer::create(weights.memory_bytes, *backend, device));
  lay_out(config, parts, weights.memory.data(), &weights);
  return weights;
}

Result<DeviceWeights> random_weights(const ModelConfig& config, const DeviceInfo& device,
                                     uint64_t seed) {
  LD_ASSIGN_OR_RETURN(DeviceWeights weights,
                      allocate_weights(config, {false, config.has_qkv_bias}, device));
  const cuda::DeviceGuard guard(device.device_idx);
  const int64_t hidden = config.hidden_dim;
  const int64_t qkv_dim = config.q_dim() + 2 * config.kv_dim();
  cudaError_t error = cudaSuccess;
  const auto matrix = [&](uint16_t* data, int64_t rows, int64_t cols, float size) {
    if (error != cudaSuccess) return;
    error = fill_normal_bf16(data, rows * cols, size / std::sqrt(static_cast<float>(cols)), ++seed);
  };
  const auto vector = [&](float* data, int64_t size, float value) {
    if (error == cudaSuccess && data != nullptr) error = fill_f32(data, size, value);
  };
  // A residual branch adds 1 / (2 num_layers) of variance, as trained models start from.
  const float branch = 1.0f / std::sqrt(2.0f * static_cast<float>(config.num_layers));
  matrix(weights.token_embedding, config.vocab_size, hidden, std::sqrt(static_cast<float>(hidden)));
  matrix(weights.output, config.vocab_size, hidden, 1.0f);
  vector(weights.output_norm, hidden, 1.0f);
  for (const DeviceLayer& layer : weights.layers) {
    vector(layer.attn_norm, hidden, 1.0f);
    vector(layer.ffn_norm, hidden, 1.0f);
    vector(layer.q_norm, config.head_dim, 1.0f);
    vector(layer.k_norm, config.head_dim, 1.0f);
    vector(layer.qkv_bias, qkv_dim, 0.1f);
    matrix(layer.qkv, qkv_dim, hidden, 1.0f);
    matrix(layer.attn_output, hidden, config.q_dim(), branch);
    matrix(layer.gate_up, 2 * int64_t{config.ffn_dim}, hidden, 1.0f);
    matrix(layer.ffn_down, hidden, config.ffn_dim, branch);
  }
  LD_RETURN_IF_ERROR(cuda::cuda_status(error, "filling random weights"));
  const std::vector<double> frequencies = rope_frequencies(config, nullptr);
  LD_RETURN_IF_ERROR(
      cuda::cuda_status(cudaMemcpy(weights.rope_frequencies, frequencies.data(),
                                   frequencies.size() * sizeof(double), cudaMemcpyHostToDevice),
                        "cudaMemcpy of the RoPE frequencies"));
  LD_RETURN_IF_ERROR(cuda::cuda_status(cudaDeviceSynchronize(), "filling random weights"));
  return weights;
}

}  // namespace longdecode::runner
