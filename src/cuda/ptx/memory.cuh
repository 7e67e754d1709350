// Loads, stores, copies and fences that the language has no words for.
#ifndef LONGDECODE_CUDA_PTX_MEMORY_CUH_
#define LONGDECODE_CUDA_PTX_MEMORY_CUH_

#include <cstdint>

namespace longdecode::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* s_pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(s_pointer));
}

// blockIdx.x and threadIdx.x; volatile: read again where they are asked for, instead of kept in a
// register together with all that is derived from them.
__device__ __forceinline__ int32_t block_index() {
  int32_t index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ int32_t thread_index() {
  int32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// Volatile, so that the compiler keeps it where it is written: early, beside other loads.
__device__ __forceinline__ int32_t load_global_i32(const int32_t* g_pointer) {
  int32_t value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(g_pointer));
  return value;
}

// 16 bytes, loaded or stored as one: what another thread sees of them is all old or all new.
__device__ __forceinline__ uint4 load_atomic_16(const uint4* g_pointer) {
  uint64_t low, high;
  asm volatile("{\n.reg .b128 v;\nld.relaxed.gpu.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}\n"
               : "=l"(low), "=l"(high)
               : "l"(g_pointer)
               : "memory");
  return make_uint4(static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                    static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32));
}

__device__ __forceinline__ void store_atomic_16(uint4* g_pointer, uint4 v) {
  asm volatile(
      "{\n.reg .b128 v;\nmov.b128 v, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], v;\n}\n" ::"l"(
          g_pointer),
      "l"(uint64_t{v.y} << 32 | v.x), "l"(uint64_t{v.w} << 32 | v.z)
      : "memory");
}

// Volatile, so that it is not taken from a register or the L1.
__device__ __forceinline__ uint32_t load_global_volatile(const uint32_t* g_pointer) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(g_pointer) : "memory");
  return value;
}

__device__ __forceinline__ void store_shared(uint32_t s_address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(s_address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t s_address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(s_address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t s_address, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(s_address), "f"(value.x), "f"(value.y)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t s_address, float4 value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(s_address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

__device__ __forceinline__ uint32_t load_shared_u32(uint32_t s_address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(s_address) : "memory");
  return value;
}

__device__ __forceinline__ float2 load_shared_float2(uint32_t s_address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(s_address)
               : "memory");
  return value;
}

__device__ __forceinline__ float4 load_shared_float4(uint32_t s_address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(s_address)
               : "memory");
  return value;
}

__device__ __forceinline__ int4 load_shared_int4(uint32_t s_address) {
  int4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(s_address)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_shared(uint32_t s_address, int4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(s_address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// 16 bytes, of which the first num_bytes come from memory and the rest are zero.
__device__ __forceinline__ void copy_async_16(uint32_t s_to, const void* g_from,
                                              uint32_t num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s_to), "l"(g_from),
               "r"(num_bytes)
               : "memory");
}

__device__ __forceinline__ void copy_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Orders this thread's ordinary shared-memory accesses before later ones of the async proxy (TMA,
// wgmma) that a barrier makes follow.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// 8x8 matrices of 16-bit elements; lane 8 i + r holds the address of row r of matrix i.
__device__ __forceinline__ void store_matrix_x4(uint32_t s_row, uint32_t a, uint32_t b, uint32_t c,
                                                uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(s_row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// The same, stored transposed.
__device__ __forceinline__ void store_matrix_x4_transposed(uint32_t s_row, uint32_t a, uint32_t b,
                                                           uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(s_row), "r"(a),
      "r"(b), "r"(c), "r"(d)
      : "memory");
}

__device__ __forceinline__ void store_matrix_x2_transposed(uint32_t s_row, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(s_row),
               "r"(a), "r"(b)
               : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements spread over the warp.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t fragment) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(fragment));
  return result;
}

}  // namespace longdecode::cuda::ptx

#endif  // LONGDECODE_CUDA_PTX_MEMORY_CUH_
