// Rounding of keys and values as base/float_convert.h does it, NaN payloads included.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_APPEND_CONVERT_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_APPEND_CONVERT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "longdecode/types.h"

namespace longdecode::cuda::gqa_append {

template <DType kDType>
__device__ __forceinline__ float to_float(uint16_t bits) {
  if constexpr (kDType == DType::kF16) {
    if ((bits & 0x7fffu) > 0x7c00u) {  // the instruction would drop the payload
      return __uint_as_float((bits & 0x8000u) << 16 | 0x7f800000u | (bits & 0x3ffu) << 13);
    }
    return __half2float(__ushort_as_half(bits));
  } else {
    return __uint_as_float(uint32_t{bits} << 16);
  }
}

template <DType kDType>
__device__ __forceinline__ uint16_t to_bits(float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  if constexpr (kDType == DType::kF16) {
    if (is_nan) return static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u);
    return __half_as_ushort(__float2half_rn(value));
  } else {
    if (is_nan) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

// 8 channels of a row as kTo; `index` counts elements of kFrom and is a multiple of 8.
template <DType kFrom, DType kTo>
__device__ __forceinline__ uint4 load_8(const void* g_rows, int64_t index) {
  if constexpr (kFrom == kTo) {
    return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(g_rows) + index);
  } else {
    float x[8];
    if constexpr (kFrom == DType::kF32) {
      const float4* g_from =
          reinterpret_cast<const float4*>(static_cast<const float*>(g_rows) + index);
      const float4 low = g_from[0], high = g_from[1];
      x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
      x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
      const uint4 raw = load_8<kFrom, kFrom>(g_rows, index);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = to_float<kFrom>(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
      }
    }
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = to_bits<kTo>(x[2 * i]) | uint32_t{to_bits<kTo>(x[2 * i + 1])} << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace longdecode::cuda::gqa_append

#endif  // LONGDECODE_CUDA_KERNELS_GQA_APPEND_CONVERT_CUH_
