// A warp's 16 query rows against a tile of 64 keys and values.
//
// Lane 4 g + t: scores[j][0], [1] are row g, keys 8 j + 2 t, + 1; [2], [3] the same of row g + 8.
// output[j] likewise, with channels in place of keys.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_PREFILL_COMPUTE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_PREFILL_COMPUTE_CUH_

#include <cmath>

#include "cuda/device/softmax.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/kernels/gqa_prefill/load.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace longdecode::cuda::gqa_prefill {

inline constexpr int kKeyBlocks = kTileTokens / 8;

template <int kDim>
struct State {
  float output[kDim / 8][4] = {};
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {};  // of the lane's keys
};

// scores = q k^T.
template <int kDim>
__device__ __forceinline__ void score(uint32_t s_q, uint32_t s_k, int lane,
                                      float (&scores)[kKeyBlocks][4]) {
  constexpr int kPitch = kPitchBytes<kDim>;
  const int matrix = lane >> 3, row = lane & 7;
#pragma unroll
  for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t q[4];  // rows 0..7 and 8..15 of the first 8 channels, then of the other 8
    ptx::load_matrix_x4(q, s_q + ((matrix & 1) * 8 + row) * kPitch + 32 * k + 16 * (matrix >> 1));
#pragma unroll
    for (int j = 0; j < kKeyBlocks; j += 2) {
      uint32_t b[4];  // both halves of the channels of 8 keys, then of the next 8
      ptx::load_matrix_x4(
          b, s_k + (8 * j + (matrix >> 1) * 8 + row) * kPitch + 32 * k + 16 * (matrix & 1));
      ptx::mma_16bit<false>(scores[j], q[0], q[1], q[2], q[3], b[0], b[1]);
      ptx::mma_16bit<false>(scores[j + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
    }
  }
}

// Hides keys behind the row's position; `first` is the tile's first key, `position` that of row g.
__device__ __forceinline__ void mask(int first, int position, int lane,
                                     float (&scores)[kKeyBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + 8 * j + 2 * (lane & 3) + (i & 1);
      if (key > position + 8 * (i >> 1)) scores[j][i] = -INFINITY;
    }
  }
}

// scores become weights relative to the new maxima; sums and outputs follow.
template <int kDim>
__device__ __forceinline__ void soften(float scale_log2e, float (&scores)[kKeyBlocks][4],
                                       State<kDim>& state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j) {
      largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
    const float row_max = fmaxf(state.row_max[half], largest * scale_log2e);
    const float offset = exponent_base(row_max);
    const float shrink = ptx::exp2_approx(state.row_max[half] - offset);
    state.row_max[half] = row_max;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[j][i] = ptx::exp2_approx(fmaf(scores[j][i], scale_log2e, -offset));
        sum += scores[j][i];
      }
    }
    state.row_sum[half] = state.row_sum[half] * shrink + sum;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      state.output[j][2 * half] *= shrink;
      state.output[j][2 * half + 1] *= shrink;
    }
  }
}

// output += weights v.
template <int kDim>
__device__ __forceinline__ void add_values(uint32_t s_v, int lane,
                                           const float (&weights)[kKeyBlocks][4],
                                           State<kDim>& state) {
  const int matrix = lane >> 3, row = lane & 7;
#pragma unroll
  for (int k = 0; k < kTileTokens / 16; ++k) {
    const float* low = weights[2 * k];
    const float* high = weights[2 * k + 1];
    const uint32_t a0 = ptx::pack_pair<false>(low[0], low[1]);
    const uint32_t a1 = ptx::pack_pair<false>(low[2], low[3]);
    const uint32_t a2 = ptx::pack_pair<false>(high[0], high[1]);
    const uint32_t a3 = ptx::pack_pair<false>(high[2], high[3]);
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      uint32_t b[4];  // both halves of the keys of 8 channels, then of the next 8
      ptx::load_matrix_x4_transposed(
          b,
          s_v + (16 * k + (matrix & 1) * 8 + row) * kPitchBytes<kDim> + 16 * (j + (matrix >> 1)));
      ptx::mma_16bit<false>(state.output[j], a0, a1, a2, a3, b[0], b[1]);
      ptx::mma_16bit<false>(state.output[j + 1], a0, a1, a2, a3, b[2], b[3]);
    }
  }
}

// Rows g and g + 8 of a warp, tokens first_token + ... of the chunk.
template <int kDim>
__device__ __forceinline__ void store(const Params& p, int head, int first_token, int lane,
                                      const State<kDim>& state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.row_sum[half];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    const int token = first_token + (lane >> 2) + 8 * half;
    if (token >= p.num_tokens) continue;
    const float factor = sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : NAN;
    uint16_t* g_row = p.g_o + token * p.o_token_stride + head * p.o_head_stride;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      if (8 * j >= p.cache.dim) continue;
      *reinterpret_cast<uint32_t*>(g_row + 8 * j + 2 * (lane & 3)) = ptx::pack_pair<false>(
          state.output[j][2 * half] * factor, state.output[j][2 * half + 1] * factor);
    }
  }
}

}  // namespace longdecode::cuda::gqa_prefill

#endif  // LONGDECODE_CUDA_KERNELS_GQA_PREFILL_COMPUTE_CUH_
