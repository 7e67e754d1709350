// Values that are not finite, of tokens that not all query rows see: their weight is 0 in rows that
// do not see them, but 0 * NaN is not. Such tokens are left out of the products and added by hand
// where they are seen, rows 2 c and 2 c + 1 by lane 4 g + c. Where V^T is the A operand of m16n8k16
// the lane holds dims g and g + 8 of the tokens 2 c, 2 c + 1 (a[0], a[1]) and 2 c + 8, 2 c + 9
// (a[2], a[3]).
#ifndef LONGDECODE_CUDA_DEVICE_HIDDEN_VALUES_CUH_
#define LONGDECODE_CUDA_DEVICE_HIDDEN_VALUES_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/warp.cuh"
#include "cuda/ptx/math.cuh"

namespace longdecode::cuda {

// All bits of the halves of a register that are not finite.
template <bool kIsF16>
__device__ __forceinline__ uint32_t non_finite_halves(uint32_t pair) {
  constexpr uint32_t kExponents = kIsF16 ? 0x7c007c00u : 0x7f807f80u;
  return __vcmpeq2(pair & kExponents, kExponents);
}

// Which of the lane's tokens, bit k of 16, have a value in `a` that is not finite.
template <bool kIsF16>
__device__ __forceinline__ uint32_t non_finite_tokens(const uint32_t (&a)[4], int lane) {
  uint32_t tokens = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t halves = non_finite_halves<kIsF16>(a[i]);
    tokens |= ((halves & 1u) | (halves >> 15 & 2u)) << (8 * (i >> 1));
  }
  return tokens << (2 * (lane & 3));
}

// The lower half of a register as a number.
template <bool kIsF16>
__device__ __forceinline__ float unpack_low(uint32_t pair) {
  return kIsF16 ? __half2float(__ushort_as_half(static_cast<uint16_t>(pair)))
                : __uint_as_float(pair << 16);
}

// The bits of tokens token, token + 1 in `tokens` as a mask of the halves of a register.
__device__ __forceinline__ uint32_t pair_mask_of(uint32_t tokens, int token) {
  return ((tokens >> token & 1u) != 0 ? 0x0000ffffu : 0u) |
         ((tokens >> token & 2u) != 0 ? 0xffff0000u : 0u);
}

// A token's weights in the lane's rows; less than 0 where the row does not see it.
template <bool kIsF16>
struct TokenWeights {
  float weight[2];

  // packed: 16-bit weights of rows 2 c, 2 c + 1, of token g and of token g + 8.
  __device__ __forceinline__ TokenWeights(const uint32_t (&packed)[2], int token, bool sees_0,
                                          bool sees_1, int lane) {
    const uint32_t pair =
        __shfl_sync(kFullWarp, token < 8 ? packed[0] : packed[1], 4 * (token & 7) + (lane & 3));
    const float low = unpack_low<kIsF16>(pair), high = unpack_low<kIsF16>(pair >> 16);
    weight[0] = sees_0 ? low : -1.0f;
    weight[1] = sees_1 ? high : -1.0f;
  }
  // The token times the value in the lower half of `pair` to an element of each row.
  __device__ __forceinline__ void add(uint32_t pair, float& row_0, float& row_1) const {
    const float value = unpack_low<kIsF16>(pair);
    if (!(weight[0] < 0.0f)) row_0 = fmaf(weight[0], value, row_0);  // NaN is seen
    if (!(weight[1] < 0.0f)) row_1 = fmaf(weight[1], value, row_1);
  }
};

// output: (dim g, row 2 c), (g, 2 c + 1), (g + 8, 2 c), (g + 8, 2 c + 1).
template <bool kIsF16>
__device__ __forceinline__ void add_token(const uint32_t (&a)[4], int token,
                                          const TokenWeights<kIsF16>& weights, int lane,
                                          float (&output)[4]) {
  const int from = (lane & ~3) | ((token & 7) >> 1);
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const uint32_t pair =
        __shfl_sync(kFullWarp, token < 8 ? a[upper] : a[2 + upper], from) >> (16 * (token & 1));
    weights.add(pair, output[2 * upper], output[2 * upper + 1]);
  }
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_HIDDEN_VALUES_CUH_
