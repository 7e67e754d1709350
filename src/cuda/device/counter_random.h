// Random bits as a function of a seed and a counter, the same on host and device.
#ifndef LONGDECODE_CUDA_DEVICE_COUNTER_RANDOM_H_
#define LONGDECODE_CUDA_DEVICE_COUNTER_RANDOM_H_

#include <cstdint>

#include "base/mix_bits.h"

namespace longdecode::cuda {

LONGDECODE_HOST_DEVICE inline uint64_t counter_random(uint64_t seed, uint64_t counter) {
  return mix_bits(split_mix(seed) ^ mix_bits(counter * kSplitMixStep + 1));
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_COUNTER_RANDOM_H_
