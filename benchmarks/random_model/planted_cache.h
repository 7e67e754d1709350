// Keys, values and queries made on the device, so that the top-delta selection keeps a stated share
// of the tokens whatever the model's own queries are.
//
// Queries are random directions, orthogonal within a group of heads, of such a length that random
// keys score N(0, 2^2) nats. Token 0,
// always attended, scores kAnchorScore with every query head: it is the pseudo-max, so with delta 5
// the threshold lies at 10, 5 deviations above the rest. One token in a stated share of the aligned
// groups of 16 scores kHitScore with one query head of its group.
#ifndef LONGDECODE_BENCHMARKS_RANDOM_MODEL_PLANTED_CACHE_H_
#define LONGDECODE_BENCHMARKS_RANDOM_MODEL_PLANTED_CACHE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longdecode::gpu_bench {

inline constexpr float kAnchorScore = 15.0f;  // nats
inline constexpr float kHitScore = 14.0f;

struct PlantedShape {
  int32_t batch = 1;
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  float softmax_scale = 0.0f;
  uint64_t seed = 1;  // of a layer
};

// q: bf16 [batch, num_q_heads, head_dim]
cudaError_t plant_queries(const PlantedShape& shape, uint16_t* q, cudaStream_t stream);

// Tokens first .. first + count - 1 of every sequence: k, v bf16 [batch, count, num_kv_heads,
// head_dim]; q of plant_queries. hit_share: of the groups of 16.
cudaError_t plant_tokens(const PlantedShape& shape, const uint16_t* q, int64_t first, int32_t count,
                         float hit_share, uint16_t* k, uint16_t* v, cudaStream_t stream);

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_RANDOM_MODEL_PLANTED_CACHE_H_
