// Logits as ordered integers, their masses, and what a cluster reduces.
#ifndef LONGDECODE_CUDA_KERNELS_SAMPLING_KEYS_CUH_
#define LONGDECODE_CUDA_KERNELS_SAMPLING_KEYS_CUH_

#include <cooperative_groups.h>

#include <cstdint>

#include "cuda/device/warp.cuh"
#include "cuda/kernels/sampling/params.h"

namespace longdecode::cuda::sampling {

// Orders keys as logits; 0 for what cannot be chosen (-infinity, NaN). -0 counts as +0.
__device__ __forceinline__ uint32_t key_of(float logit) {
  if (!(logit > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The larger one has the larger logit or, with equal logits, the lower id.
__device__ __forceinline__ uint64_t ranked(uint32_t key, int id) {
  return uint64_t{key} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int id_of(uint64_t best) {
  return best >> 32 == 0 ? -1 : static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
}

// exp((logit - max) * factor) in units of 2^-40: integer sums do not depend on their order.
struct Mass {
  uint32_t max_key;
  float factor;

  __device__ __forceinline__ uint64_t operator()(uint32_t key) const {
    if (key == max_key) return uint64_t{1} << 40;
    const float exponent = (logit_of(key) - logit_of(max_key)) * factor;
    return __float2ull_rz(exp2f(exponent * 1.44269504f) * 0x1p40f);
  }
};
// Every key counts 1.
struct Count {
  __device__ __forceinline__ uint64_t operator()(uint32_t) const { return 1; }
};

__device__ __forceinline__ uint64_t warp_max(uint64_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const uint64_t other = __shfl_xor_sync(kFullWarp, value, offset);
    value = other > value ? other : value;
  }
  return value;
}
__device__ __forceinline__ uint64_t warp_total(uint64_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(kFullWarp, value, offset);
  }
  return value;
}
// The sum of the lane's value and those of the lanes before it.
__device__ __forceinline__ uint64_t warp_prefix(uint64_t value, int lane) {
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const uint64_t before = __shfl_up_sync(kFullWarp, value, offset);
    if (lane >= offset) value += before;
  }
  return value;
}

// A value of each warp of each CTA of the cluster, for all to read after a cluster barrier.
struct WarpValues {
  uint64_t of[kClusterCtas][kWarps];
};

// The values of the warps, gathered in every CTA of the cluster; an object serves one gather, since
// a faster CTA would write the next one's values while others read. `value` is uniform in a warp.
__device__ __forceinline__ void gather(WarpValues& s_values, uint64_t value) {
  namespace cg = cooperative_groups;
  auto cluster = cg::this_cluster();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane < kClusterCtas) {
    cluster.map_shared_rank(&s_values, lane)->of[cluster.block_rank()][warp] = value;
  }
  cluster.sync();
}

// The sum of all values before (rank, warp), ranks first.
__device__ __forceinline__ uint64_t sum_before(const WarpValues& s_values, int rank, int warp) {
  const int lane = threadIdx.x % 32;
  uint64_t sum = 0;
  for (int i = lane; i < rank * kWarps + warp; i += 32) sum += s_values.of[i / kWarps][i % kWarps];
  return warp_total(sum);
}
__device__ __forceinline__ uint64_t sum_all(const WarpValues& s_values) {
  return sum_before(s_values, kClusterCtas, 0);
}

}  // namespace longdecode::cuda::sampling

#endif  // LONGDECODE_CUDA_KERNELS_SAMPLING_KEYS_CUH_
