// The tensor memory accelerator.
#ifndef LONGDECODE_CUDA_PTX_TMA_CUH_
#define LONGDECODE_CUDA_PTX_TMA_CUH_

#include <cuda.h>

#include <cstdint>

namespace longdecode::cuda::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// L2 policy for data that is read once, as createpolicy.fractional.L2::evict_first makes it (a
// constant costs no registers). An explicit evict_normal policy costs 20% of the bandwidth.
inline constexpr uint64_t kEvictFirst = 0x12f0000000000000;

// One box of a 4D tensor map; completes on s_barrier by bytes.
__device__ __forceinline__ void tma_load_4d(uint32_t s_to, const CUtensorMap* map, int32_t c0,
                                            int32_t c1, int32_t c2, int32_t c3, uint32_t s_barrier,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(s_to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(s_barrier), "l"(policy)
      : "memory");
}

// The same with the L2's own policy.
__device__ __forceinline__ void tma_load_4d(uint32_t s_to, const CUtensorMap* map, int32_t c0,
                                            int32_t c1, int32_t c2, int32_t c3,
                                            uint32_t s_barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(s_to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(s_barrier)
      : "memory");
}

// One box of a 5D tensor map.
__device__ __forceinline__ void tma_load_5d(uint32_t s_to, const CUtensorMap* map, int32_t c0,
                                            int32_t c1, int32_t c2, int32_t c3, int32_t c4,
                                            uint32_t s_barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(s_to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(s_barrier), "l"(policy)
      : "memory");
}

}  // namespace longdecode::cuda::ptx

#endif  // LONGDECODE_CUDA_PTX_TMA_CUH_
