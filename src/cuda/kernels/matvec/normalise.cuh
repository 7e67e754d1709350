// RMSNorm of all tokens into shared memory, by every CTA for itself: a row comes from the L2, and
// the CTA's first chunks of W arrive meanwhile.
#ifndef LONGDECODE_CUDA_KERNELS_MATVEC_NORMALISE_CUH_
#define LONGDECODE_CUDA_KERNELS_MATVEC_NORMALISE_CUH_

#include <cstdint>

#include "cuda/device/floats.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/kernels/matvec/params.h"
#include "cuda/ptx/barrier.cuh"

namespace longdecode::cuda::matvec {

// Columns 8 unit ... 8 unit + 7 of all tokens to s_x.
__device__ __forceinline__ void normalise_unit(const Params& p, int unit, const Floats8& weight,
                                               const float (&scale)[kMaxTokens], char* s_x,
                                               int64_t pitch) {
#pragma unroll
  for (int n = 0; n < kMaxTokens; ++n) {
    if (n >= p.num_tokens) break;
    Floats8 x = load_floats8(p.g_x_f32 + int64_t{n} * p.num_cols + 8 * unit);
#pragma unroll
    for (int i = 0; i < 8; ++i) x.v[i] *= scale[n] * weight.v[i];
    *reinterpret_cast<uint4*>(s_x + n * pitch + 16 * unit) = pack_bf16(x);
  }
}

// Ends with a barrier. Waits for the kernel before.
__device__ __forceinline__ void normalise(const Params& p, float* s_squares, char* s_x) {
  const int units = p.num_cols / 8, thread = threadIdx.x;
  // Two units a thread cover 4096 columns; their weights are there before x is.
  Floats8 held[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int unit = thread + i * kThreads;
    if (unit < units) held[i] = load_floats8(p.g_norm_weight + 8 * unit);
  }
  const int64_t pitch = p.x_pitch_bytes;
  const int padded_units = (p.num_cols + kChunkCols - 1) / kChunkCols * (kChunkCols / 8);
  for (int i = units + thread; i < padded_units; i += kThreads) {
    for (int n = 0; n < p.num_tokens; ++n) {
      *reinterpret_cast<uint4*>(s_x + n * pitch + 16 * i) = make_uint4(0, 0, 0, 0);
    }
  }
  ptx::wait_dependency();
  float squares[kMaxTokens] = {};
  for (int unit = thread; unit < units; unit += kThreads) {
#pragma unroll
    for (int n = 0; n < kMaxTokens; ++n) {
      if (n >= p.num_tokens) break;
      const Floats8 x = load_floats8(p.g_x_f32 + int64_t{n} * p.num_cols + 8 * unit);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares[n] = fmaf(x.v[i], x.v[i], squares[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kMaxTokens; ++n) {
    if (n >= p.num_tokens) break;
    const float sum = warp_sum(squares[n]);
    if (thread % 32 == 0) s_squares[thread / 32 * kMaxTokens + n] = sum;
  }
  __syncthreads();
  float scale[kMaxTokens];
#pragma unroll
  for (int n = 0; n < kMaxTokens; ++n) {
    if (n >= p.num_tokens) break;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += s_squares[w * kMaxTokens + n];
    scale[n] = rsqrtf(sum / static_cast<float>(p.num_cols) + p.norm_eps);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int unit = thread + i * kThreads;
    if (unit < units) normalise_unit(p, unit, held[i], scale, s_x, pitch);
  }
  for (int unit = thread + 2 * kThreads; unit < units; unit += kThreads) {
    normalise_unit(p, unit, load_floats8(p.g_norm_weight + 8 * unit), scale, s_x, pitch);
  }
  __syncthreads();
}

}  // namespace longdecode::cuda::matvec

#endif  // LONGDECODE_CUDA_KERNELS_MATVEC_NORMALISE_CUH_
