// A decode step of some layers of Llama-3.1-8B with random weights, as a runner launches it.
#ifndef LONGDECODE_BENCHMARKS_GPU_MODEL_LAYER_CHAIN_H_
#define LONGDECODE_BENCHMARKS_GPU_MODEL_LAYER_CHAIN_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmarks/gpu_model/device_memory.h"
#include "cuda/model/model_ops.h"
#include "longdecode/kv_cache.h"

namespace longdecode::gpu_bench {

inline constexpr int32_t kHidden = 4096, kFfn = 14336, kVocab = 128256;
inline constexpr int32_t kQHeads = 32, kKvHeads = 8, kHeadDim = 128;
inline constexpr int32_t kQkvRows = (kQHeads + 2 * kKvHeads) * kHeadDim;
// Weights that a layer reads.
inline constexpr int64_t kLayerBytes =
    int64_t{2} * kHidden * (kQkvRows + kQHeads * kHeadDim + 3 * kFfn);

class LayerChain {
 public:
  // One sequence of kv_len tokens, each layer with its own weights and cache.
  static Result<std::unique_ptr<LayerChain>> create(const DeviceInfo& device, int32_t num_layers,
                                                    int64_t kv_len, KeyEncoding keys);

  // What a step launches.
  enum class Parts {
    kLinear,    // products alone
    kNoAttend,  // and rope_append
    kLayer,     // and attention
    kStep,      // and embed, the head and greedy sampling
  };
  Status launch(Parts parts, cudaStream_t stream);

  const KvCache& cache() const { return *cache_; }

 private:
  LayerChain() = default;
  Status init(int64_t kv_len, KeyEncoding keys);
  Status launch_layer(int32_t layer, Parts parts, cudaStream_t stream);

  DeviceInfo device_;
  int32_t num_layers_ = 0;
  struct Layer {
    DeviceBuffer qkv, o, gate_up, down;
  };
  std::vector<Layer> layers_;
  DeviceBuffer embedding_, norm_, frequencies_;
  DeviceBuffer ids_, steps_, x_, qkv_, q_, o_, act_, logits_, workspace_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<DecodePlan> plan_;
};

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_GPU_MODEL_LAYER_CHAIN_H_
