#include "benchmarks/harness/noise.h"

#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

namespace longdecode::bench {
namespace {

constexpr int32_t kNumQuantiles = 65536;

// Quantiles of N(0, 1) at (i + 0.5) / 65536. Newton's method from the quantile before: going
// outwards from the median the distribution function is concave, so it converges from one side.
std::vector<float> normal_quantiles() {
  std::vector<float> table(kNumQuantiles);
  double x = 0.0;
  for (int32_t i = kNumQuantiles / 2; i < kNumQuantiles; ++i) {
    const double upper_tail = 1.0 - (i + 0.5) / kNumQuantiles;
    for (int32_t step = 0; step < 6; ++step) {
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
      x += (0.5 * std::erfc(x / std::numbers::sqrt2) - upper_tail) / density;
    }
    table[static_cast<size_t>(i)] = static_cast<float>(x);
    table[static_cast<size_t>(kNumQuantiles - 1 - i)] = static_cast<float>(-x);
  }
  return table;
}

}  // namespace

void fill_normal(uint64_t seed, uint64_t stream, uint64_t row, std::span<float> values) {
  static const std::vector<float> quantiles = normal_quantiles();
  const uint64_t key = split_mix(split_mix(split_mix(seed) + stream) + row);
  uint64_t hash = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 4 == 0) hash = split_mix(key + i);
    values[i] = quantiles[(hash >> (16 * (i % 4))) & 0xffff];
  }
}

}  // namespace longdecode::bench
