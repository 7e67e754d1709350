// Random bits as a function of a seed and a counter, the same on host and device.
#ifndef LONGDECODE_CUDA_DEVICE_COUNTER_RANDOM_H_
#define LONGDECODE_CUDA_DEVICE_COUNTER_RANDOM_H_

#include <cstdint>

#ifdef __CUDACC__
#define LONGDECODE_HOST_DEVICE __host__ __device__
#else
#define LONGDECODE_HOST_DEVICE
#endif

namespace longdecode::cuda {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
LONGDECODE_HOST_DEVICE inline uint64_t mix_bits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

LONGDECODE_HOST_DEVICE inline uint64_t counter_random(uint64_t seed, uint64_t counter) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  return mix_bits(mix_bits(seed + kGolden) ^ mix_bits(counter * kGolden + 1));
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_COUNTER_RANDOM_H_
