// The weights of a model in the memory of a CUDA device, as its operations want them.
#ifndef LONGDECODE_RUNNER_GPU_DEVICE_WEIGHTS_H_
#define LONGDECODE_RUNNER_GPU_DEVICE_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/device_buffer.h"
#include "longdecode/status.h"
#include "longdecode/types.h"
#include "runner/model/config.h"
#include "runner/model/session.h"

namespace longdecode::runner {

// bf16 matrices [rows, cols]; fp32 vectors.
struct DeviceLayer {
  float* attn_norm = nullptr;       // [hidden_dim]
  uint16_t* qkv = nullptr;          // [q_dim + 2 kv_dim, hidden_dim]: q, k, v
  float* qkv_bias = nullptr;        // [q_dim + 2 kv_dim] or nullptr
  float* q_norm = nullptr;          // [head_dim] or nullptr
  float* k_norm = nullptr;          // as q_norm
  uint16_t* attn_output = nullptr;  // [hidden_dim, q_dim]
  float* ffn_norm = nullptr;        // [hidden_dim]
  uint16_t* gate_up = nullptr;      // [2 ffn_dim, hidden_dim], interleaved (cuda::kGateBlock)
  uint16_t* ffn_down = nullptr;     // [hidden_dim, ffn_dim]
};

struct DeviceWeights {
  DeviceBuffer memory;  // what everything below points into
  int64_t memory_bytes = 0;
  uint16_t* token_embedding = nullptr;  // [vocab_size, hidden_dim]
  std::vector<DeviceLayer> layers;
  float* output_norm = nullptr;        // [hidden_dim]
  uint16_t* output = nullptr;          // [vocab_size, hidden_dim]; the embedding where tied
  double* rope_frequencies = nullptr;  // [rope_dim / 2]

  // Bytes that one decode step has to read: every matrix, of the embedding one row.
  int64_t step_bytes(const ModelConfig& config) const;
};

// What a model has beyond its config.
struct WeightParts {
  bool tied = false;
  bool qkv_bias = false;
};

// Room for the weights of a model, nothing in it. kOutOfMemory names the bytes that are needed and
// those that are free.
Result<DeviceWeights> allocate_weights(const ModelConfig& config, const WeightParts& parts,
                                       const DeviceInfo& device);

// The weights of a file, rounded to bf16. `progress` (may be empty) gets bytes done and in all.
Result<DeviceWeights> upload_weights(const Model& model, const DeviceInfo& device,
                                     const std::function<void(int64_t, int64_t)>& progress);

// Random ones, made on the device: activations keep a size of about 1. For throughput only.
Result<DeviceWeights> random_weights(const ModelConfig& config, const DeviceInfo& device,
                                     uint64_t seed);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_DEVICE_WEIGHTS_H_
