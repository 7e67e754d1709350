// One head of one token, by a warp: RMSNorm, RoPE, rounding to bf16.
#ifndef LONGDECODE_CUDA_KERNELS_ROTARY_ROTATE_CUH_
#define LONGDECODE_CUDA_KERNELS_ROTARY_ROTATE_CUH_

#include <cstdint>

#include "cuda/device/floats.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/kernels/rotary/params.h"

namespace longdecode::cuda::rotary {

inline constexpr int kPairsPerLane = kMaxHeadDim / 2 / 32;

struct Head {
  const float* g_from;  // [head_dim]
  uint16_t* g_to;       // [head_dim] bf16
  const float* g_norm;  // [head_dim] or nullptr
  bool rotates;         // false for V
  int position;
};

// The angle is taken in double: position * frequency has up to 2^20 radians, of which fp32 would
// leave 0.06 in doubt.
__device__ __forceinline__ void rotate_pair(double frequency, int position, float& a, float& b) {
  const double half_turns = position * frequency * (1.0 / 3.14159265358979323846);
  float sine, cosine;
  sincospif(static_cast<float>(half_turns - 2.0 * rint(0.5 * half_turns)), &sine, &cosine);
  const float rotated = a * cosine - b * sine;
  b = a * sine + b * cosine;
  a = rotated;
}

__device__ __forceinline__ void finish_head(const Model& m, const Head& head, int lane) {
  const int num_rotated = head.rotates ? m.rope_dim / 2 : 0;
  const bool halves = head.rotates && !m.adjacent_pairs;
  float a[kPairsPerLane], b[kPairsPerLane];
  int first[kPairsPerLane], second[kPairsPerLane];  // channels; the first is -1: no such pair
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int pair = lane + 32 * i;
    const bool split = halves && pair < num_rotated;
    first[i] = split ? pair : 2 * pair;
    second[i] = split ? pair + num_rotated : 2 * pair + 1;
    if (2 * pair >= m.head_dim) first[i] = -1;
    a[i] = first[i] >= 0 ? head.g_from[first[i]] : 0.0f;
    b[i] = first[i] >= 0 ? head.g_from[second[i]] : 0.0f;
    squares = fmaf(a[i], a[i], fmaf(b[i], b[i], squares));
  }
  float scale = 1.0f;
  if (head.g_norm != nullptr) {
    scale = rsqrtf(warp_sum(squares) / static_cast<float>(m.head_dim) + m.norm_eps);
  }
#pragma unroll
  for (int i = 0; i < kPairsPerLane; ++i) {
    const int pair = lane + 32 * i;
    if (first[i] < 0) continue;
    if (head.g_norm != nullptr) {
      a[i] *= scale * head.g_norm[first[i]];
      b[i] *= scale * head.g_norm[second[i]];
    }
    if (pair < num_rotated) rotate_pair(m.g_frequencies[pair], head.position, a[i], b[i]);
    head.g_to[first[i]] = to_bf16(a[i]);
    head.g_to[second[i]] = to_bf16(b[i]);
  }
}

}  // namespace longdecode::cuda::rotary

#endif  // LONGDECODE_CUDA_KERNELS_ROTARY_ROTATE_CUH_
