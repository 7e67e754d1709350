// The rows of x, times the norm's weight, into shared memory as bf16, by every CTA for itself: they
// come from the L2 while the CTA's first chunks of W arrive. RMSNorm's factor of a token comes
// last, at its sums: so one pass over x is enough.
#ifndef LONGDECODE_CUDA_KERNELS_MATVEC_SCALE_ROWS_CUH_
#define LONGDECODE_CUDA_KERNELS_MATVEC_SCALE_ROWS_CUH_

#include <cstdint>

#include "cuda/device/floats.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/kernels/matvec/params.h"
#include "cuda/ptx/barrier.cuh"

namespace longdecode::cuda::matvec {

// A thread has this many loads of 8 columns in flight: units kThreads apart, of neighbouring
// tokens.
inline constexpr int kUnitsAtOnce = 2;
inline constexpr int kTokensAtOnce = 4;

// Columns 8 unit + ..., of kUnitsAtOnce units from `unit` on and kTokensAtOnce tokens.
__device__ __forceinline__ void scale_units(const Params& p, int unit, int first_token,
                                            const Floats8 (&weight)[kUnitsAtOnce],
                                            float (&squares)[kTokensAtOnce], char* s_x) {
  const int units = p.num_cols / 8;
  Floats8 x[kUnitsAtOnce][kTokensAtOnce];
#pragma unroll
  for (int i = 0; i < kUnitsAtOnce; ++i) {
#pragma unroll
    for (int n = 0; n < kTokensAtOnce; ++n) {
      const bool exists = unit + i * kThreads < units && first_token + n < p.num_tokens;
      x[i][n] = Floats8{};
      if (exists) {
        x[i][n] = load_floats8(p.g_x_f32 + int64_t{first_token + n} * p.num_cols +
                               8 * (unit + i * kThreads));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kUnitsAtOnce; ++i) {
#pragma unroll
    for (int n = 0; n < kTokensAtOnce; ++n) {
      if (unit + i * kThreads >= units || first_token + n >= p.num_tokens) continue;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        squares[n] = fmaf(x[i][n].v[c], x[i][n].v[c], squares[n]);
        x[i][n].v[c] *= weight[i].v[c];
      }
      *reinterpret_cast<uint4*>(s_x + int64_t{first_token + n} * p.x_pitch_bytes +
                                16 * (unit + i * kThreads)) = pack_bf16(x[i][n]);
    }
  }
}

__device__ __forceinline__ void load_norm_weight(const Params& p, int unit,
                                                 Floats8 (&weight)[kUnitsAtOnce]) {
#pragma unroll
  for (int i = 0; i < kUnitsAtOnce; ++i) {
    weight[i] = Floats8{};
    if (unit + i * kThreads < p.num_cols / 8) {
      weight[i] = load_floats8(p.g_norm_weight + 8 * (unit + i * kThreads));
    }
  }
}

// Waits for the kernel before; ends with a barrier. s_squares: [kWarps][kMaxTokens].
__device__ __forceinline__ void scale_rows(const Params& p, float* s_squares, char* s_x) {
  const int units = p.num_cols / 8, thread = threadIdx.x;
  Floats8 weight[kUnitsAtOnce];
  load_norm_weight(p, thread, weight);  // there before x is
  const int padded_units = (p.num_cols + kChunkCols - 1) / kChunkCols * (kChunkCols / 8);
  for (int unit = units + thread; unit < padded_units; unit += kThreads) {
    for (int n = 0; n < p.num_tokens; ++n) {
      *reinterpret_cast<uint4*>(s_x + int64_t{n} * p.x_pitch_bytes + 16 * unit) =
          make_uint4(0, 0, 0, 0);
    }
  }
  ptx::wait_dependency();
  for (int token = 0; token < p.num_tokens; token += kTokensAtOnce) {
    float squares[kTokensAtOnce] = {};
    for (int unit = thread; unit < units; unit += kUnitsAtOnce * kThreads) {
      if (unit > thread || token > 0) load_norm_weight(p, unit, weight);
      scale_units(p, unit, token, weight, squares, s_x);
    }
#pragma unroll
    for (int n = 0; n < kTokensAtOnce; ++n) {
      const float sum = warp_sum(squares[n]);
      if (thread % 32 == 0) s_squares[thread / 32 * kMaxTokens + token + n] = sum;
    }
  }
  __syncthreads();
}

// RMSNorm's factor of a token.
__device__ __forceinline__ float norm_factor(const Params& p, const float* s_squares, int token) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s_squares[w * kMaxTokens + token];
  return rsqrtf(sum / static_cast<float>(p.num_cols) + p.norm_eps);
}

}  // namespace longdecode::cuda::matvec

#endif  // LONGDECODE_CUDA_KERNELS_MATVEC_SCALE_ROWS_CUH_
