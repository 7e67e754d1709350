// What every softmax over parts of the tokens needs. Maxima in log2 units: of scores times
// softmax_scale times log2(e).
#ifndef LONGDECODE_CUDA_DEVICE_SOFTMAX_CUH_
#define LONGDECODE_CUDA_DEVICE_SOFTMAX_CUH_

#include <cmath>

#include "cuda/ptx/math.cuh"

namespace longdecode::cuda {

// What exponents are relative to. Nothing visible yet: exp2(-inf - 0) = 0 instead of
// exp2(-inf + inf) = NaN.
__device__ __forceinline__ float exponent_base(float row_max) {
  return row_max == -INFINITY ? 0.0f : row_max;
}

// Weight of a part with maximum part_max in a sum whose maximum is `joint_max`.
__device__ __forceinline__ float part_weight(float part_max, float joint_max) {
  return part_max == -INFINITY ? 0.0f : ptx::exp2_approx(part_max - joint_max);
}

// In nats: -infinity of nothing, NaN of NaN.
__device__ __forceinline__ float natural_lse(float row_max, float row_sum) {
  constexpr float kLn2 = 0.693147180559945f;
  return row_sum == 0.0f ? -INFINITY : fmaf(row_max, kLn2, logf(row_sum));
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_SOFTMAX_CUH_
