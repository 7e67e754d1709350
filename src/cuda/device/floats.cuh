// 8 neighbouring values: 32 bytes of fp32, 16 bytes of bf16.
#ifndef LONGDECODE_CUDA_DEVICE_FLOATS_CUH_
#define LONGDECODE_CUDA_DEVICE_FLOATS_CUH_

#include <cstdint>

#include "cuda/ptx/math.cuh"

namespace longdecode::cuda {

struct Floats8 {
  float v[8];
};

__device__ __forceinline__ Floats8 load_floats8(const float* g_from) {
  const float4 a = reinterpret_cast<const float4*>(g_from)[0];
  const float4 b = reinterpret_cast<const float4*>(g_from)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

__device__ __forceinline__ void store_floats8(float* g_to, const Floats8& x) {
  reinterpret_cast<float4*>(g_to)[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  reinterpret_cast<float4*>(g_to)[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}

__device__ __forceinline__ uint4 pack_bf16(const Floats8& x) {
  return make_uint4(ptx::pack_pair<false>(x.v[0], x.v[1]), ptx::pack_pair<false>(x.v[2], x.v[3]),
                    ptx::pack_pair<false>(x.v[4], x.v[5]), ptx::pack_pair<false>(x.v[6], x.v[7]));
}

__device__ __forceinline__ Floats8 unpack_bf16(const uint4& bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
  Floats8 x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x.v[2 * i] = __uint_as_float(words[i] << 16);
    x.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return x;
}

__device__ __forceinline__ uint16_t to_bf16(float x) {
  return static_cast<uint16_t>(ptx::pack_pair<false>(x, 0.0f));
}

// x * sigmoid(x); 0 for x so negative that the exponential overflows.
__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_FLOATS_CUH_
