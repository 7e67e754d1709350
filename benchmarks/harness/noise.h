// Made-up numbers that are a function of (seed, stream, row) alone: the same data for any number of
// threads and any order of generation.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_NOISE_H_
#define LONGDECODE_BENCHMARKS_HARNESS_NOISE_H_

#include <cstdint>
#include <span>

namespace longdecode::bench {

// The finaliser of splitmix64 (Steele, Lea & Flood 2014): a bijection with full avalanche.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// N(0, 1) values cut at 4.3 deviations: 65536 quantiles, looked up by 16 bits of a hash.
void fill_normal(uint64_t seed, uint64_t stream, uint64_t row, std::span<float> values);

// Uniform values, one after the other.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(mix64(mix64(seed) + stream)) {}
  uint64_t bits() { return state_ = mix64(state_); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_NOISE_H_
