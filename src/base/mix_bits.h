// Hashing of integers, the same on host and device: what made-up numbers and seeds are made of.
#ifndef LONGDECODE_BASE_MIX_BITS_H_
#define LONGDECODE_BASE_MIX_BITS_H_

#include <cstdint>

#ifdef __CUDACC__
#define LONGDECODE_HOST_DEVICE __host__ __device__
#else
#define LONGDECODE_HOST_DEVICE
#endif

namespace longdecode {

inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection with full avalanche; 0
// stays 0.
LONGDECODE_HOST_DEVICE constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The number that SplitMix64 gives in state x.
LONGDECODE_HOST_DEVICE constexpr uint64_t split_mix(uint64_t x) {
  return mix_bits(x + kSplitMixStep);
}

}  // namespace longdecode

#endif  // LONGDECODE_BASE_MIX_BITS_H_
