#include "benchmarks/study/layer_sample.h"

#include <cmath>
#include <numbers>
#include <random>

namespace longdecode::study {
namespace {

class Normal {
 public:
  explicit Normal(uint64_t seed) : random_(seed) {}
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }
  // Box-Muller: std::normal_distribution differs between standard libraries.
  double operator()() {
    return std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  std::mt19937_64 random_;
};

struct Channel {
  double spread = 1.0;
  double mean = 0.0;
  double q_spread = 1.0;
};

std::vector<Channel> make_channels(SyntheticKeys kind, int32_t count, Normal& random) {
  std::vector<Channel> channels(static_cast<size_t>(count));
  for (size_t c = 0; c < channels.size(); ++c) {
    if (kind == SyntheticKeys::kBias) {
      const double sign = random.uniform() < 0.5 ? -1.0 : 1.0;
      channels[c].mean = sign * (50.0 + 150.0 * random.uniform());
    }
    if (kind == SyntheticKeys::kOutlierChannels && c % 16 == 5) channels[c] = {100.0, 0.0, 0.1};
  }
  return channels;
}

const char* name_of(SyntheticKeys kind) {
  switch (kind) {
    case SyntheticKeys::kGaussian:
      return "synthetic gaussian";
    case SyntheticKeys::kBias:
      return "synthetic K bias";
    case SyntheticKeys::kOutlierChannels:
      return "synthetic outlier channels";
  }
  return "";
}

}  // namespace

std::vector<int64_t> sample_positions(int64_t num_tokens, int64_t count, uint64_t seed) {
  Normal random(seed);
  std::vector<int64_t> positions;
  const int64_t first = num_tokens / 2;
  const double part = static_cast<double>(num_tokens - first) / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    positions.push_back(first +
                        static_cast<int64_t>((static_cast<double>(i) + random.uniform()) * part));
  }
  return positions;
}

LayerSample make_synthetic(SyntheticKeys kind, int64_t num_tokens, int64_t num_positions,
                           uint64_t seed) {
  constexpr double kScoreDeviation = 3.0;
  constexpr double kSinkScore = 15.0;
  constexpr double kShared = 0.8;  // share of a query's length that all queries of a head have
  LayerSample sample;
  sample.source = name_of(kind);
  sample.num_kv_heads = 3;
  sample.group = 3;
  sample.positions = sample_positions(num_tokens, num_positions, seed);
  Normal random(seed + 1 + static_cast<uint64_t>(kind));
  const int32_t num_q_heads = sample.num_kv_heads * sample.group;
  const auto dim = static_cast<size_t>(sample.head_dim);
  const auto channels = make_channels(kind, sample.head_dim, random);

  // Score = q . k / sqrt(dim): its deviation is |q * spread| / sqrt(dim).
  double norm2 = 0.0;
  for (const Channel& c : channels) norm2 += std::pow(c.spread * c.q_spread, 2);
  const double q_scale = kScoreDeviation * std::sqrt(static_cast<double>(dim) / norm2);
  std::vector<double> shared(static_cast<size_t>(num_q_heads) * dim);
  for (double& value : shared) value = random();
  for (size_t p = 0; p < sample.positions.size(); ++p) {
    for (size_t i = 0; i < shared.size(); ++i) {
      const double direction = kShared * shared[i] + std::sqrt(1 - kShared * kShared) * random();
      sample.q.push_back(static_cast<float>(q_scale * channels[i % dim].q_spread * direction));
    }
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int32_t h = 0; h < sample.num_kv_heads; ++h) {
      for (size_t c = 0; c < dim; ++c) {
        double key = random();
        for (int32_t g = 0; t == 0 && g < sample.group; ++g) {
          key += kSinkScore / (kScoreDeviation * kShared * std::sqrt(static_cast<double>(dim))) *
                 shared[static_cast<size_t>(h * sample.group + g) * dim + c];
        }
        sample.k.push_back(static_cast<float>(channels[c].mean + channels[c].spread * key));
        sample.v.push_back(static_cast<float>(random()));
      }
    }
  }
  return sample;
}

}  // namespace longdecode::study
