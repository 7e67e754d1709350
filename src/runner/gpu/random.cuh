// Random numbers as functions of a counter: what fills weights and caches of benchmarks.
#ifndef LONGDECODE_RUNNER_GPU_RANDOM_CUH_
#define LONGDECODE_RUNNER_GPU_RANDOM_CUH_

#include <cstdint>

namespace longdecode::runner {

__device__ __forceinline__ uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Two normal numbers from 64 random bits (Box and Muller).
__device__ __forceinline__ float2 normal_pair(uint64_t bits) {
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float angle = static_cast<float>(bits & 0xffffff) * (0x1p-24f * 6.2831853f);
  const float radius = sqrtf(-2.0f * __logf(u));
  return make_float2(radius * __cosf(angle), radius * __sinf(angle));
}

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_RANDOM_CUH_
