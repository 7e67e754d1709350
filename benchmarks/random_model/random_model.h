// The shapes of models, and a batch of sequences whose cache is filled with planted tokens.
#ifndef LONGDECODE_BENCHMARKS_RANDOM_MODEL_RANDOM_MODEL_H_
#define LONGDECODE_BENCHMARKS_RANDOM_MODEL_RANDOM_MODEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cache/device_buffer.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "runner/model/config.h"
#include "runner/model/session.h"

namespace longdecode::gpu_bench {

// kInvalidArgument names the models that are known.
Result<runner::ModelConfig> random_model_config(const std::string& name);

// Sequences of `depth` tokens each, to be forked for every run.
class PlantedBatch {
 public:
  // options: method, context_len, device. New tokens: at most context_len - depth.
  static Result<PlantedBatch> create(const runner::ModelConfig& config,
                                     const runner::SessionOptions& options, int32_t batch,
                                     int64_t depth, cudaStream_t stream);

  KvCache& cache() { return cache_; }
  // bf16 [num_layers, batch, num_q_heads, head_dim]
  const uint16_t* queries() const { return reinterpret_cast<const uint16_t*>(queries_.data()); }
  // Continuations of the sequences; free them with free_forks.
  Result<std::vector<SequenceId>> fork();
  Status free_forks(const std::vector<SequenceId>& forks);

 private:
  explicit PlantedBatch(KvCache cache) : cache_(std::move(cache)) {}
  Status fill(const runner::ModelConfig& config, const runner::SessionOptions& options,
              int64_t depth, cudaStream_t stream);
  KvCache cache_;
  std::vector<SequenceId> sequences_;
  DeviceBuffer queries_;
};

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_RANDOM_MODEL_RANDOM_MODEL_H_
