// Made-up numbers that are a function of (seed, stream, row) alone: the same data for any number of
// threads and any order of generation.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_NOISE_H_
#define LONGDECODE_BENCHMARKS_HARNESS_NOISE_H_

#include <cstdint>
#include <span>

#include "base/mix_bits.h"

namespace longdecode::bench {

// N(0, 1) values cut at 4.3 deviations: 65536 quantiles, looked up by 16 bits of a hash.
void fill_normal(uint64_t seed, uint64_t stream, uint64_t row, std::span<float> values);

// Uniform values, one after the other.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(split_mix(split_mix(seed) + stream)) {}
  uint64_t bits() { return state_ = split_mix(state_); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_NOISE_H_
