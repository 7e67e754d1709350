#include <cuda_bf16.h>

#include "benchmarks/random_model/planted_cache.h"
#include "runner/gpu/random.cuh"

namespace longdecode::gpu_bench {
namespace {

constexpr int kGroupTokens = 16;
constexpr float kScoreDeviation = 2.0f;  // nats

__device__ __forceinline__ float normal(uint64_t bits) { return runner::normal_pair(bits).x; }

// The sum of 256 threads' values, in all of them.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float s_values[256];
  __syncthreads();
  s_values[threadIdx.x] = value;
  __syncthreads();
  for (int width = 128; width > 0; width /= 2) {
    if (threadIdx.x < width) s_values[threadIdx.x] += s_values[threadIdx.x + width];
    __syncthreads();
  }
  return s_values[0];
}

// A block is a (sequence, kv head), a thread a channel. The queries of a group are orthogonal: a
// key planted for one of them says nothing to the others.
__global__ void queries_kernel(const PlantedShape shape, __nv_bfloat16* q) {
  const int channel = threadIdx.x;
  const bool has_channel = channel < shape.head_dim;
  const int group = shape.num_q_heads / shape.num_kv_heads;
  const float length = kScoreDeviation / shape.softmax_scale;
  for (int h = 0; h < group; ++h) {
    const int64_t head = int64_t{blockIdx.x} * group + h;
    const uint64_t at = static_cast<uint64_t>(head) * 1024 + channel;
    float value = has_channel ? normal(split_mix(split_mix(shape.seed * 0x51ull) + at)) : 0.0f;
    for (int before = 1; before <= h; ++before) {
      const float other =
          has_channel ? __bfloat162float(q[(head - before) * shape.head_dim + channel]) : 0.0f;
      value -= block_sum(value * other) / (length * length) * other;
    }
    const float norm = sqrtf(block_sum(value * value));
    if (has_channel) {
      q[head * shape.head_dim + channel] = __float2bfloat16(value * length / norm);
    }
    __syncthreads();
  }
}

// A block is a (token, sequence), a thread takes channels of all kv heads in turn.
__global__ void tokens_kernel(const PlantedShape shape, const __nv_bfloat16* q, int64_t first,
                              float hit_share, __nv_bfloat16* k, __nv_bfloat16* v) {
  const int b = blockIdx.y;
  const int64_t token = first + blockIdx.x;
  const int group = shape.num_q_heads / shape.num_kv_heads;
  const int row = shape.num_kv_heads * shape.head_dim;
  const int64_t at = (int64_t{b} * gridDim.x + blockIdx.x) * row;
  // A key c * q has the score softmax_scale * c * |q|^2.
  const float per_nat = shape.softmax_scale / (kScoreDeviation * kScoreDeviation);
  for (int i = threadIdx.x; i < row; i += blockDim.x) {
    const int head = i / shape.head_dim, channel = i - head * shape.head_dim;
    const uint64_t in_cache =
        split_mix(shape.seed ^ (uint64_t(b) << 40)) + uint64_t(token) * row + i;
    const auto query = [&](int in_group) {
      const int64_t q_head = int64_t{b} * shape.num_q_heads + head * group + in_group;
      return __bfloat162float(q[q_head * shape.head_dim + channel]);
    };
    const uint64_t dice = split_mix(split_mix(shape.seed + 77) + uint64_t(b) * 1000003 +
                                    uint64_t(head) * 17 + uint64_t(token / kGroupTokens) * 4099);
    const bool is_hit = static_cast<float>(dice >> 40) * 0x1p-24f < hit_share &&
                        token % kGroupTokens == static_cast<int64_t>(dice % kGroupTokens);
    float key = normal(split_mix(in_cache));
    if (token == 0) {
      key = 0.0f;
      for (int h = 0; h < group; ++h) key += kAnchorScore * per_nat * query(h);
    } else if (is_hit) {
      key = kHitScore * per_nat * query(static_cast<int>((dice >> 8) % group));
    }
    k[at + i] = __float2bfloat16(key);
    v[at + i] = __float2bfloat16(normal(split_mix(in_cache ^ 0x5555555555555555ull)));
  }
}

}  // namespace

cudaError_t plant_queries(const PlantedShape& shape, uint16_t* q, cudaStream_t stream) {
  queries_kernel<<<static_cast<unsigned>(shape.batch * shape.num_kv_heads), 256, 0, stream>>>(
      shape, reinterpret_cast<__nv_bfloat16*>(q));
  return cudaGetLastError();
}

cudaError_t plant_tokens(const PlantedShape& shape, const uint16_t* q, int64_t first, int32_t count,
                         float hit_share, uint16_t* k, uint16_t* v, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(shape.batch));
  tokens_kernel<<<grid, 256, 0, stream>>>(shape, reinterpret_cast<const __nv_bfloat16*>(q), first,
                                          hit_share, reinterpret_cast<__nv_bfloat16*>(k),
                                          reinterpret_cast<__nv_bfloat16*>(v));
  return cudaGetLastError();
}

}  // namespace longdecode::gpu_bench
