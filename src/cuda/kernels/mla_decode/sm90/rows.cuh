// The scores of more than 32 rows: S = Q K^T with the query rows on M, padded to 64. A row then
// lies in four lanes of one warp, so that its softmax needs neither shared memory nor a barrier
// (1245 clocks a tile with the tokens on M). P goes to shared memory as [rows][tokens], which is
// the B operand of O^T += V^T P^T.
//
// Thread t of the scoring warpgroup (warp w, lane 4 g + c): scores[4 j + i] is row 16 w + g +
// 8 (i / 2), token 8 j + 2 c + i % 2.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_ROWS_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_ROWS_CUH_

#include "cuda/kernels/mla_decode/sm90/compute.cuh"

namespace longdecode::cuda::mla_sm90 {

inline constexpr int kRowScores = kTileTokens / 2;  // fp32 registers of a 64 x 64 tile

// Of rows 16 w + g and 16 w + g + 8; the sums are over the thread's own tokens.
struct RowState {
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {0.0f, 0.0f};
};

// Issues S = Q K^T of the tile in s_stage; the caller waits for it.
template <class C>
__device__ __forceinline__ void issue_row_scores(uint32_t s_base, uint32_t s_stage,
                                                 float (&scores)[kRowScores]) {
  const uint64_t k = ptx::wgmma_descriptor(s_stage);
  const uint64_t q = ptx::wgmma_descriptor(LD_SHARED(C, s_base, q));
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kKeyDim / 16; ++i) {
    ptx::Wgmma<kTileTokens, C::kIsF16, false>::mma(
        scores, q + (i >> 2) * (C::kQChunkBytes / 16) + (i & 3) * 2,
        k + (i >> 2) * (kChunkBytes / 16) + (i & 3) * 2, i != 0);
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void mask_row_scores(const Visibility& visibility, int tile, int tid,
                                                float (&scores)[kRowScores]) {
  const int token = tile * kTileTokens + 2 * (tid & 3);
  const int row = 16 * (tid >> 5) + ((tid & 31) >> 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int limit = visibility.tokens(row + 8 * half) - token;
#pragma unroll
    for (int j = 0; j < kTileTokens / 8; ++j) {
      if (8 * j >= limit) scores[4 * j + 2 * half] = -INFINITY;
      if (8 * j + 1 >= limit) scores[4 * j + 2 * half + 1] = -INFINITY;
    }
  }
}

// Over the four lanes of a row.
template <bool kSum>
__device__ __forceinline__ float reduce_over_quad(float x) {
#pragma unroll
  for (int offset = 1; offset <= 2; offset *= 2) {
    const float other = __shfl_xor_sync(kFullWarp, x, offset);
    x = kSum ? x + other : fmaxf(x, other);
  }
  return x;
}

// Weights of a tile relative to a row's `base`, packed[2 j + half]: tokens 8 j + 2 c, + 1. Returns
// the sum over the thread's tokens.
template <class C>
__device__ __forceinline__ float weigh_row(float scale, const float (&scores)[kRowScores],
                                           float base, int half,
                                           uint32_t (&packed)[kRowScores / 2]) {
  float sum_0 = 0.0f, sum_1 = 0.0f;
#pragma unroll
  for (int j = 0; j < kTileTokens / 8; ++j) {
    const float p0 = ptx::exp2_approx(fmaf(scores[4 * j + 2 * half], scale, -base));
    const float p1 = ptx::exp2_approx(fmaf(scores[4 * j + 2 * half + 1], scale, -base));
    packed[2 * j + half] = ptx::pack_pair<C::kIsF16>(p0, p1);
    sum_0 += p0;
    sum_1 += p1;
  }
  return sum_0 + sum_1;
}

// From scores to packed weights. A row's maximum is kept until it is 2^8 too small (P <= 256),
// because rescaling O^T is on the critical path. So is looking for the tile's maxima: the weights
// are computed beside them from the old ones, and again in warps where one rises. row_factor: what
// the rows of O^T must be multiplied with; returns whether one of the warp's is not 1.
template <class C>
__device__ __forceinline__ bool exponentiate_rows(float scale, const float (&scores)[kRowScores],
                                                  RowState& state, float (&row_factor)[2],
                                                  uint32_t (&packed)[kRowScores / 2]) {
  constexpr float kSlack = 8.0f;
  float scaled_max[2], sum[2];
  bool raises = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float tile_max = fmaxf(scores[2 * half], scores[2 * half + 1]);
#pragma unroll
    for (int j = 1; j < kTileTokens / 8; ++j) {
      tile_max = fmaxf(tile_max, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
    }
    scaled_max[half] = reduce_over_quad<false>(tile_max) * scale;
    raises |= scaled_max[half] > state.row_max[half] + kSlack;
    row_factor[half] = 1.0f;
    sum[half] = weigh_row<C>(scale, scores, exponent_base(state.row_max[half]), half, packed);
  }
  raises = __any_sync(kFullWarp, raises);
  if (raises) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& row_max = state.row_max[half];
      if (scaled_max[half] > row_max + kSlack) {
        row_factor[half] = ptx::exp2_approx(row_max - scaled_max[half]);
        row_max = scaled_max[half];
      }
      sum[half] = weigh_row<C>(scale, scores, exponent_base(row_max), half, packed);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    state.row_sum[half] = fmaf(state.row_sum[half], row_factor[half], sum[half]);
  }
  return raises;
}

// A warp's 16 rows of P and their factors to shared memory.
template <class C>
__device__ __forceinline__ void store_weights(uint32_t s_base, int tid,
                                              const float (&row_factor)[2],
                                              const uint32_t (&packed)[kRowScores / 2]) {
  const int lane = tid & 31, warp = tid >> 5;
  // Matrix i of a store: rows 16 w + 8 (i % 2), tokens 8 (2 j + i / 2).
  const uint32_t s_row =
      LD_SHARED(C, s_base, p) + (16 * warp + ((lane >> 3) & 1) * 8 + (lane & 7)) * 128;
#pragma unroll
  for (int j = 0; j < kTileTokens / 16; ++j) {
    ptx::store_matrix_x4(s_row + (((2 * j + (lane >> 4)) ^ (lane & 7)) << 4), packed[4 * j],
                         packed[4 * j + 1], packed[4 * j + 2], packed[4 * j + 3]);
  }
  if ((lane & 3) == 0) {
    const uint32_t s_factor = LD_SHARED(C, s_base, row_factor) + (16 * warp + (lane >> 2)) * 4;
    ptx::store_shared(s_factor, row_factor[0]);
    ptx::store_shared(s_factor + 32, row_factor[1]);
  }
}

// (max, sum) of the segment's rows to s.row_stats; a kScoreBarrier must follow.
template <class C>
__device__ __forceinline__ void publish_row_stats(uint32_t s_base, int tid, const RowState& state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 16 * (tid >> 5) + ((tid & 31) >> 2) + 8 * half;
    const float sum = reduce_over_quad<true>(state.row_sum[half]);
    if ((tid & 3) == 0 && row < C::kRows) {
      ptx::store_shared(LD_SHARED(C, s_base, row_stats) + 8 * row,
                        make_float2(state.row_max[half], sum));
    }
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_ROWS_CUH_
