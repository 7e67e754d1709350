// Random numbers as functions of a counter: what fills weights and caches of benchmarks.
#ifndef LONGDECODE_RUNNER_GPU_RANDOM_CUH_
#define LONGDECODE_RUNNER_GPU_RANDOM_CUH_

#include <cstdint>

#include "base/mix_bits.h"

namespace longdecode::runner {

// Two normal numbers from 64 random bits (Box and Muller).
__device__ __forceinline__ float2 normal_pair(uint64_t bits) {
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float angle = static_cast<float>(bits & 0xffffff) * (0x1p-24f * 6.2831853f);
  const float radius = sqrtf(-2.0f * __logf(u));
  return make_float2(radius * __cosf(angle), radius * __sinf(angle));
}

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_RANDOM_CUH_
