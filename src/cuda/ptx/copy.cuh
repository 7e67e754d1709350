// Asynchronous copies in groups, bulk copies, prefetches and words that CTAs share.
#ifndef LONGDECODE_CUDA_PTX_COPY_CUH_
#define LONGDECODE_CUDA_PTX_COPY_CUH_

#include <cstdint>

namespace longdecode::cuda::ptx {

// The thread's cp.async since the last commit become a group.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most kPending of the thread's latest groups are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// 16 bytes, of which the first num_bytes come from memory and the rest are zero; policy: of the L2.
__device__ __forceinline__ void copy_async_16(uint32_t s_to, const void* g_from, uint32_t num_bytes,
                                              uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(s_to),
               "l"(g_from), "r"(num_bytes), "l"(policy)
               : "memory");
}

// num_bytes, a multiple of 16, completing on s_barrier by bytes. sm_90 on.
__device__ __forceinline__ void bulk_load(uint32_t s_to, const void* g_from, uint32_t num_bytes,
                                          uint32_t s_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(s_to),
      "l"(g_from), "r"(num_bytes), "r"(s_barrier)
      : "memory");
}

// The 32-byte sector of an address into L2.
__device__ __forceinline__ void prefetch(const void* g_address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(g_address) : "memory");
}

// Two words that other CTAs read or write at the same time; each is whole, nothing else is ordered.
__device__ __forceinline__ float2 load_relaxed(const float* g_from) {
  float2 value;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(g_from)
               : "memory");
  return value;
}
// The same under a condition, without a branch; else `value` stays.
__device__ __forceinline__ void load_relaxed_if(bool condition, const float* g_from,
                                                float2& value) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n"
      "@p ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];\n}\n"
      : "+f"(value.x), "+f"(value.y)
      : "l"(g_from), "r"(static_cast<int>(condition))
      : "memory");
}
__device__ __forceinline__ void store_relaxed(float* g_to, float x, float y) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(g_to), "f"(x), "f"(y)
               : "memory");
}

}  // namespace longdecode::cuda::ptx

#endif  // LONGDECODE_CUDA_PTX_COPY_CUH_
