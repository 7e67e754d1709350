// Many tokens of one sequence through the layers of a model on a CUDA device.
#ifndef LONGDECODE_RUNNER_GPU_GPU_PREFILL_H_
#define LONGDECODE_RUNNER_GPU_GPU_PREFILL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cache/device_buffer.h"
#include "cuda/model/gemm.h"
#include "cuda/model/model_ops.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "runner/gpu/device_weights.h"
#include "runner/model/config.h"

namespace longdecode::runner {

// What RoPE needs of a layer.
cuda::RopeModel rope_model(const ModelConfig& config, const DeviceWeights& weights,
                           const DeviceLayer& layer);

// Enqueues only. Not for concurrent use.
class GpuPrefill {
 public:
  // config and weights outlive the object.
  static Result<std::unique_ptr<GpuPrefill>> create(const ModelConfig& config,
                                                    const DeviceWeights& weights,
                                                    const DeviceInfo& device, int64_t max_tokens,
                                                    cudaStream_t stream);

  // `count` tokens, ids on the device, of the only sequence of the cache's reserved step: appended
  // to every layer, attending densely to the stored keys.
  Status enqueue(const int32_t* ids, int64_t count, KvCache* cache);

  // fp32 [count, hidden_dim] of the last enqueue, after the last layer.
  const float* x() const { return x_.as<float>(); }
  // What multiplies: "cublasLt 13.1.0" or "own kernel".
  const std::string& gemm_name() const { return gemm_->name(); }

 private:
  GpuPrefill(const ModelConfig& config, const DeviceWeights& weights, const DeviceInfo& device,
             std::unique_ptr<cuda::Gemm> gemm, cudaStream_t stream)
      : config_(config),
        weights_(weights),
        device_(device),
        gemm_(std::move(gemm)),
        stream_(stream) {}
  Status allocate(int64_t max_tokens);
  Status attend(int32_t layer_idx, int64_t count, KvCache* cache);
  Status feed_forward(const DeviceLayer& layer, int64_t count);
  Status norm(const float* weight, int64_t count);
  Status multiply(cuda::GemmArgs args);

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  DeviceInfo device_;
  std::unique_ptr<cuda::Gemm> gemm_;
  cudaStream_t stream_;
  DeviceBuffer workspace_;
  DeviceBuffer x_;            // fp32 [tokens, hidden_dim]
  DeviceBuffer normed_;       // bf16 [tokens, hidden_dim]
  DeviceBuffer qkv_;          // fp32 [tokens, q_dim + 2 kv_dim]
  DeviceBuffer q_, o_;        // bf16 [tokens, q_dim]
  DeviceBuffer k_, v_;        // bf16 [tokens, kv_dim]
  DeviceBuffer gate_up_;      // bf16 [tokens, 2 ffn_dim]
  DeviceBuffer activations_;  // bf16 [tokens, ffn_dim]
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_GPU_PREFILL_H_
