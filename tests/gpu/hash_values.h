// Pseudo-random inputs that host and device compute alike, element by element: no arrays of
// gigabytes need to be generated or copied, and the reference regenerates what it reads.
#ifndef LONGDECODE_TESTS_GPU_HASH_VALUES_H_
#define LONGDECODE_TESTS_GPU_HASH_VALUES_H_

#include <cstdint>

#ifdef __CUDACC__
#define LD_HOST_DEVICE __host__ __device__
#else
#define LD_HOST_DEVICE
#endif

namespace longdecode::gpu_test {

// Nearly normal, mean 0, deviation 1, |value| < 3.47: the sum of four uniform 16-bit numbers,
// exact in fp32 on both sides.
LD_HOST_DEVICE inline float hash_normal(uint64_t key) {
  uint64_t x = key * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  const int32_t sum =
      static_cast<int32_t>((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
  return static_cast<float>(sum - 131070) * (1.0f / 37837.2f);
}

// How latent rows and query rows are made.
struct ValueRule {
  uint64_t seed = 1;
  float k_scale = 1.0f;
  float q_scale = 1.0f;
  float clamp = 1e30f;
  int32_t needle_every = 0;  // 0: none; else tokens t with t % this == 7 are one-hot rows
  float needle_value = 0.0f;
  int32_t padding = 0;
};

LD_HOST_DEVICE inline float clamp_value(float x, float limit) {
  return x > limit ? limit : (x < -limit ? -limit : x);
}

LD_HOST_DEVICE inline float k_value(const ValueRule& rule, int64_t sequence, int64_t token,
                                    int32_t channel) {
  if (rule.needle_every > 0 && token % rule.needle_every == 7) {
    const int64_t hot = (token / rule.needle_every * 37 + sequence * 11) % 576;
    return channel == hot ? rule.needle_value : 0.0f;
  }
  const uint64_t row = static_cast<uint64_t>((sequence << 32) + token);
  return clamp_value(rule.k_scale * hash_normal(rule.seed + row * 576 + channel), rule.clamp);
}

LD_HOST_DEVICE inline float q_value(const ValueRule& rule, int64_t row, int32_t channel) {
  const uint64_t key = (rule.seed ^ 0x5555555555555555ull) + static_cast<uint64_t>(row) * 576;
  return clamp_value(rule.q_scale * hash_normal(key + channel), rule.clamp);
}

}  // namespace longdecode::gpu_test

#endif  // LONGDECODE_TESTS_GPU_HASH_VALUES_H_
