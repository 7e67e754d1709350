// Exact attention of one tile of 16 tokens by a warp: S^T = K Q^T, O^T += V^T P^T. Tokens are the M
// of the first product and the K of the second, a block of 8 query rows is the N of both.
//
// Lane 4 g + t holds scores of tokens g, g + 8 for rows 2 t, 2 t + 1 of the block.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_ATTEND_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_ATTEND_CUH_

#include "cuda/device/softmax.cuh"
#include "cuda/kernels/ffd_decode/fold.cuh"
#include "cuda/kernels/ffd_decode/load.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace longdecode::cuda::ffd {

// (token g, row 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1), before softmax_scale.
using Scores = float[4];

// Two fp16 subnormals 256 code + residual from bytes of the planes.
__device__ __forceinline__ uint32_t join_planes(uint32_t residuals, uint32_t codes,
                                                uint32_t selector) {
  return __byte_perm(residuals, codes, selector) & 0x03ff03ffu;
}

// Sums of the two chains of products, and of the two columns of a row.
template <class C>
__device__ __forceinline__ void join_sums(const ExactQuery<C>& query, const float (&first)[4],
                                          const float (&second)[4], Scores& scores) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float sum = first[j] + second[j];
    if constexpr (C::kTwoLanesFold) sum += __shfl_xor_sync(kFullWarp, sum, 2);
    scores[j] = fmaf(sum, j % 2 == 0 ? query.factor_0 : query.factor_1,
                     j % 2 == 0 ? query.offset_0 : query.offset_1);
  }
}

template <class C>
__device__ __forceinline__ void score_planes(uint32_t s_slot, const ExactQuery<C>& query,
                                             int tile_in_page, int lane, Scores& scores) {
  float first[4] = {0.0f, 0.0f, 0.0f, 0.0f}, second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const int first_unit = tile_in_page * C::kBlocks;
#pragma unroll
  for (int i = 0; i < C::kBlocks; ++i) {
    // Where kBlocks is a multiple of 4 the tile starts a quad, and all of this is constant.
    const int unit = C::kBlocks % 4 == 0 ? i : first_unit % 4 + i;
    const int4 codes = C::shared_int4(s_slot + 512 * (unit / 4) + 16 * lane);
    const int4 residuals = C::shared_int4(s_slot + C::kResidualOffset + 512 * i + 16 * lane);
    const int shift = 2 * (unit % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t r0 = word(residuals, 2 * half), r1 = word(residuals, 2 * half + 1);
      const uint32_t c0 = word(codes, 2 * half) >> shift, c1 = word(codes, 2 * half + 1) >> shift;
      const uint32_t a0 = join_planes(r0, c0, 0x5140), a1 = join_planes(r1, c1, 0x5140);
      const uint32_t a2 = join_planes(r0, c0, 0x7362), a3 = join_planes(r1, c1, 0x7362);
      const int b = 4 * i + 2 * half;
      float(&high)[4] = C::kTwoLanesFold && half == 1 ? second : first;
      ptx::mma_16bit<true>(high, a0, a1, a2, a3, query.high[b], query.high[b + 1]);
      if constexpr (!C::kTwoLanesFold) {
        ptx::mma_16bit<true>(second, a0, a1, a2, a3, query.low[b], query.low[b + 1]);
      }
    }
  }
  join_sums<C>(query, first, second, scores);
}

template <class C>
__device__ __forceinline__ void score_rows(uint32_t s_slot, const ExactQuery<C>& query, int lane,
                                           Scores& scores) {
  float first[4] = {0.0f, 0.0f, 0.0f, 0.0f}, second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const int g = lane >> 2, t = lane & 3;
  const uint32_t s_low = s_slot + g * C::kRowBytes, s_high = s_low + 8 * C::kRowBytes;
#pragma unroll
  for (int i = 0; i < C::kBlocks; ++i) {
    const int piece = ((4 * i + t) ^ swizzle(g)) << 4;  // swizzle(g + 8) is the same
    const int4 low = C::shared_int4(s_low + piece);
    const int4 high = C::shared_int4(s_high + piece);
    ptx::mma_16bit<C::kIsF16>(first, word(low, 0), word(high, 0), word(low, 1), word(high, 1),
                              query.high[4 * i], query.high[4 * i + 1]);
    ptx::mma_16bit<C::kIsF16>(second, word(low, 2), word(high, 2), word(low, 3), word(high, 3),
                              query.high[4 * i + 2], query.high[4 * i + 3]);
  }
  join_sums<C>(query, first, second, scores);
}

// Over the lanes with the same t: all tokens.
__device__ __forceinline__ float max_over_tokens(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 4));
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 8));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 16));
}
__device__ __forceinline__ float sum_over_tokens(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 4);
  x += __shfl_xor_sync(kFullWarp, x, 8);
  return x + __shfl_xor_sync(kFullWarp, x, 16);
}

// What a warp has attended so far. Scores in log2 units.
template <class C>
struct RowState {
  float max_0 = -INFINITY, max_1 = -INFINITY;
  float sum_0 = 0.0f, sum_1 = 0.0f;  // over the lane's tokens
  float o[C::kMBlocks][4];  // (x = m, row 2 t), (m, 2 t + 1), (m + kMBlocks, 2 t), (.., 2 t + 1)

  __device__ __forceinline__ RowState() {
#pragma unroll
    for (int m = 0; m < C::kMBlocks; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[m][j] = 0.0f;
    }
  }

  // Weights of the tile's scores (log2 units) into `scores`; the state is rescaled to their
  // maximum.
  __device__ __forceinline__ void soften(Scores& scores) {
    const float tile_0 = fmaxf(scores[0], scores[2]), tile_1 = fmaxf(scores[1], scores[3]);
    // Rare after the first tiles.
    if (__any_sync(kFullWarp, tile_0 > max_0 || tile_1 > max_1)) raise(tile_0, tile_1);
    const float base_0 = exponent_base(max_0), base_1 = exponent_base(max_1);
    scores[0] = ptx::exp2_approx(scores[0] - base_0);
    scores[1] = ptx::exp2_approx(scores[1] - base_1);
    scores[2] = ptx::exp2_approx(scores[2] - base_0);
    scores[3] = ptx::exp2_approx(scores[3] - base_1);
    sum_0 += scores[0] + scores[2];
    sum_1 += scores[1] + scores[3];
  }

  // O^T += V^T P^T.
  __device__ __forceinline__ void add_values(uint32_t s_values, const Scores& weights, int lane) {
    const uint32_t b0 = ptx::transpose_matrix(ptx::pack_pair<C::kIsF16>(weights[0], weights[1]));
    const uint32_t b1 = ptx::transpose_matrix(ptx::pack_pair<C::kIsF16>(weights[2], weights[3]));
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      uint32_t v[4][C::kPartWords];
      load_part(s_values, part, lane, v);
#pragma unroll
      for (int i = 0; i < C::kMBlocks / C::kParts; ++i) {
        // Dims x = m and x = m + kMBlocks; the latter are in the second half of the part's words.
        const int upper = i + C::kPartWords;
        ptx::mma_16bit<C::kIsF16>(o[part * (C::kMBlocks / C::kParts) + i],
                                  pair_tokens(v[0], v[1], i), pair_tokens(v[0], v[1], upper),
                                  pair_tokens(v[2], v[3], i), pair_tokens(v[2], v[3], upper), b0,
                                  b1);
      }
    }
  }

 private:
  // To the maxima over all lanes' tokens.
  __device__ __forceinline__ void raise(float tile_0, float tile_1) {
    const float top_0 = fmaxf(max_0, max_over_tokens(tile_0));
    const float top_1 = fmaxf(max_1, max_over_tokens(tile_1));
    const float factor_0 = ptx::exp2_approx(max_0 - exponent_base(top_0));
    const float factor_1 = ptx::exp2_approx(max_1 - exponent_base(top_1));
    max_0 = top_0, max_1 = top_1;
    sum_0 *= factor_0, sum_1 *= factor_1;
#pragma unroll
    for (int m = 0; m < C::kMBlocks; ++m) {
      o[m][0] *= factor_0, o[m][1] *= factor_1, o[m][2] *= factor_0, o[m][3] *= factor_1;
    }
  }

  // Element i of two tokens.
  static __device__ __forceinline__ uint32_t pair_tokens(const uint32_t (&first)[C::kPartWords],
                                                         const uint32_t (&second)[C::kPartWords],
                                                         int i) {
    return __byte_perm(first[i / 2], second[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
  }
  // Tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
  static __device__ __forceinline__ void load_part(uint32_t s_values, int part, int lane,
                                                   uint32_t (&v)[4][C::kPartWords]) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = 2 * t + k % 2 + 8 * (k / 2);
      const uint32_t s_row = s_values + token * C::kRowBytes;
#pragma unroll
      for (int i = 0; i < C::kPartSpans; ++i) {
        const int span = part + i * C::kParts;
        if constexpr (C::kVector == 8) {
          const int4 words = C::shared_int4(s_row + (((8 * span + g) ^ swizzle(token)) << 4));
#pragma unroll
          for (int w = 0; w < 4; ++w) v[k][4 * i + w] = word(words, w);
        } else {
          const float2 words =
              shared_float2(s_row + (((4 * span + g / 2) ^ swizzle(token)) << 4) + 8 * (g & 1));
          v[k][2 * i] = __float_as_uint(words.x);
          v[k][2 * i + 1] = __float_as_uint(words.y);
        }
      }
    }
  }
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_ATTEND_CUH_
