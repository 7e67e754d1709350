// embed, rms_norm, silu_up and sample on CUDA against host code.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "cuda/device/counter_random.h"
#include "cuda/model/model_ops.h"
#include "tests/gpu/model/arrays.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;
using gpu_test::check_status;

TEST(CudaRows, Embed) {
  for (const int32_t dim : {8, 576, 4096}) {
    constexpr int32_t kVocab = 301;
    const std::vector<uint16_t> table = to_bf16(normal_floats(int64_t{kVocab} * dim, 1.0f, 1));
    const DeviceArray<uint16_t> embedding(table);
    const std::vector<int32_t> ids = {0, 300, 7, 7, -1, 301, 150};
    const DeviceArray<int32_t> device_ids(ids);
    const DeviceArray<float> x(static_cast<int64_t>(ids.size()) * dim);
    check_status(cuda::embed({device_ids.data(), embedding.data(), x.data(),
                              static_cast<int64_t>(ids.size()), kVocab, dim},
                             cuda_device(), nullptr),
                 "embed");
    const std::vector<float> result = x.get();
    EXPECT_TRUE(x.intact());
    for (size_t t = 0; t < ids.size(); ++t) {
      for (int32_t c = 0; c < dim; ++c) {
        const float value = result[t * size_t(dim) + size_t(c)];
        if (ids[t] < 0 || ids[t] >= kVocab) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(value, bf16_to_f32(table[size_t(ids[t]) * size_t(dim) + size_t(c)]));
        }
      }
    }
  }
}

TEST(CudaRows, RmsNorm) {
  for (const int32_t dim : {8, 576, 2056, 8192}) {
    constexpr int64_t kTokens = 2500;  // more than CTAs
    const std::vector<float> x = normal_floats(kTokens * dim, 2.0f, 1);
    const std::vector<float> weight = normal_floats(dim, 1.0f, 2);
    const DeviceArray<float> device_x(x), device_weight(weight);
    const DeviceArray<uint16_t> out(kTokens * dim);
    check_status(
        cuda::rms_norm({device_x.data(), device_weight.data(), 1e-5f, out.data(), kTokens, dim},
                       cuda_device(), nullptr),
        "rms_norm");
    const std::vector<float> result = to_floats(out.get());
    EXPECT_TRUE(out.intact());
    int64_t wrong = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      const float* row = x.data() + t * dim;
      const double squares = std::inner_product(row, row + dim, row, 0.0);
      const double scale = 1.0 / std::sqrt(squares / dim + 1e-5);
      for (int32_t c = 0; c < dim; ++c) {
        const double expected = row[c] * scale * weight[size_t(c)];
        // Half a unit of bf16 and some of fp32.
        const double tolerance = (0x1p-8 + 0x1p-19) * std::fabs(expected);
        wrong += !(std::fabs(result[size_t(t * dim + c)] - expected) <= tolerance);
      }
    }
    EXPECT_EQ(wrong, 0) << dim;
  }
}

TEST(CudaRows, SiluUp) {
  for (const int32_t dim : {8, 1536, 14336}) {
    constexpr int64_t kTokens = 37;
    const std::vector<float> pairs = to_floats(to_bf16(normal_floats(kTokens * 2 * dim, 30.0f, 1)));
    const DeviceArray<uint16_t> gate_up(to_bf16(pairs));
    const DeviceArray<uint16_t> out(kTokens * dim);
    check_status(cuda::silu_up({gate_up.data(), out.data(), kTokens, dim}, cuda_device(), nullptr),
                 "silu_up");
    const std::vector<float> result = to_floats(out.get());
    EXPECT_TRUE(out.intact());
    int64_t wrong = 0;
    for (int64_t i = 0; i < kTokens * dim; ++i) {
      const size_t gate = static_cast<size_t>(i / 8 * 16 + i % 8);
      const double expected = silu(pairs[gate]) * pairs[gate + 8];
      // silu of a gate below -87 underflows on the device.
      const double tolerance = (0x1p-8 + 0x1p-18) * std::fabs(expected) + 1e-34;
      wrong += !(std::fabs(result[static_cast<size_t>(i)] - expected) <= tolerance);
    }
    EXPECT_EQ(wrong, 0) << dim;
  }
}

struct Options {
  float temperature = 0.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
};

// What may be drawn, largest first, with its weight at the temperature.
struct Candidate {
  float logit;
  int32_t id;
  double weight;
};

std::vector<Candidate> candidates_of(const float* logits, int32_t vocab, const Options& options) {
  std::vector<Candidate> all;
  for (int32_t i = 0; i < vocab; ++i) {
    if (logits[i] > -INFINITY) all.push_back({logits[i], i, 0.0});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (options.top_k > 0 && size_t(options.top_k) < all.size()) all.resize(size_t(options.top_k));
  const auto weight = [&](const Candidate& c, double temperature) {
    if (std::isinf(all[0].logit)) return c.logit == all[0].logit ? 1.0 : 0.0;
    return std::exp((double{c.logit} - double{all[0].logit}) / temperature);
  };
  if (options.top_p < 1.0f) {
    double total = 0.0, sum = 0.0;
    for (const Candidate& c : all) total += weight(c, 1.0);
    size_t keep = 0;
    do sum += weight(all[keep++], 1.0);
    while (keep < all.size() && sum < options.top_p * total);
    all.resize(keep);
  }
  for (Candidate& c : all) c.weight = weight(c, options.temperature);
  return all;
}

// Sequence b draws from step b on, with a seed of its own.
int32_t first_step(int32_t b) { return b; }
uint64_t seed_of(uint64_t seed, int32_t b) { return seed + 1000u * static_cast<uint64_t>(b); }

// Runs `steps` draws on the same logits, sequence by sequence [steps, batch].
std::vector<int32_t> sample_steps(const std::vector<float>& logits, int32_t batch, int32_t vocab,
                                  const Options& options, int32_t steps, uint64_t seed) {
  std::vector<int32_t> first, after;
  std::vector<uint64_t> seeds;
  for (int32_t b = 0; b < batch; ++b) {
    first.push_back(first_step(b));
    after.push_back(first_step(b) + steps);
    seeds.push_back(seed_of(seed, b));
  }
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<int32_t> ids(batch), counters(first);
  const DeviceArray<uint64_t> device_seeds(seeds);
  const DeviceArray<int32_t> history(int64_t{steps} * batch);
  cuda::SampleArgs args;
  args.logits = device_logits.data();
  args.batch = batch;
  args.vocab_size = vocab;
  args.temperature = options.temperature;
  args.top_k = options.top_k;
  args.top_p = options.top_p;
  args.seeds = device_seeds.data();
  args.ids = ids.data();
  args.steps = counters.data();
  args.history = history.data();
  args.history_steps = steps;
  for (int32_t i = 0; i < steps; ++i) {
    check_status(cuda::sample(args, cuda_device(), nullptr), "sample");
  }
  const std::vector<int32_t> ring = history.get();
  std::vector<int32_t> result;
  for (int32_t i = 0; i < steps; ++i) {
    for (int32_t b = 0; b < batch; ++b) {
      result.push_back(ring[static_cast<size_t>((first_step(b) + i) % steps * batch + b)]);
    }
  }
  EXPECT_EQ(counters.get(), after);
  const std::vector<int32_t> last(result.end() - batch, result.end());
  EXPECT_EQ(ids.get(), last);
  EXPECT_TRUE(ids.intact() && counters.intact() && history.intact());
  return result;
}

TEST(CudaSample, Greedy) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const int32_t vocab : {1, 3, 7, 1000, 49152, 128256, 151936}) {
    constexpr int32_t kBatch = 5;
    std::vector<float> logits = normal_floats(int64_t{kBatch} * vocab, 2.0f, 1);
    std::vector<int32_t> expected;
    for (int32_t b = 0; b < kBatch; ++b) {
      float* row = logits.data() + int64_t{b} * vocab;
      if (b == 1) std::fill_n(row, vocab, -3.0f);                        // ties: the lowest id
      if (b == 2) std::fill_n(row, vocab, vocab % 2 == 0 ? nan : -inf);  // nothing
      if (b == 3) row[vocab / 2] = nan;
      if (b == 4) row[vocab - 1] = row[vocab / 3] = inf;
      int32_t best = -1;
      for (int32_t i = 0; i < vocab; ++i) {
        if (row[i] > -inf && (best < 0 || row[i] > row[best])) best = i;
      }
      expected.push_back(best);
    }
    EXPECT_EQ(sample_steps(logits, kBatch, vocab, {}, 1, 0), expected) << vocab;
  }
}

// Where a token's mass lies: by eighth of the vocabulary (a CTA), 16th of that (a warp), lane, id.
std::array<int32_t, 4> place_of(int32_t id, int32_t vocab) {
  const int32_t slice = (vocab + 7) / 8, cta = id / slice, index = id % slice;
  const int32_t count = std::min(slice, vocab - cta * slice);
  const int32_t warp_size = (count + 511) / 512 * 32;
  return {cta, index / warp_size, index % warp_size % 32, id};
}

// Draws that are no token which may be drawn, or not the one at the drawn place.
int64_t count_wrong_draws(const std::vector<float>& logits, int32_t vocab, const Options& options,
                          int32_t steps, uint64_t seed, const std::vector<int32_t>& drawn) {
  const auto batch = static_cast<int32_t>(logits.size() / size_t(vocab));
  int64_t wrong = 0;
  for (int32_t b = 0; b < batch; ++b) {
    std::vector<Candidate> kept = candidates_of(logits.data() + int64_t{b} * vocab, vocab, options);
    std::sort(kept.begin(), kept.end(), [vocab](const Candidate& x, const Candidate& y) {
      return place_of(x.id, vocab) < place_of(y.id, vocab);
    });
    double total = 0.0;
    for (const Candidate& c : kept) total += c.weight;
    for (int32_t step = 0; step < steps; ++step) {
      const int32_t id = drawn[static_cast<size_t>(step * batch + b)];
      const double place = static_cast<double>(cuda::counter_random(
                               seed_of(seed, b), static_cast<uint64_t>(first_step(b) + step))) *
                           0x1p-64;
      double before = 0.0;
      bool right = false;
      for (const Candidate& c : kept) {
        // fp32 exponentials, in the sum and here: 2^-20 of the whole.
        if (c.id == id) {
          right =
              place >= before / total - 0x1p-20 && place <= (before + c.weight) / total + 0x1p-20;
        }
        before += c.weight;
      }
      wrong += !right;
    }
  }
  return wrong;
}

TEST(CudaSample, DrawsFromWhatIsKept) {
  for (const int32_t vocab : {5, 1000, 49152, 128256}) {
    constexpr int32_t kBatch = 3, kSteps = 40;
    std::vector<float> logits = normal_floats(int64_t{kBatch} * vocab, 2.0f, 7);
    for (int32_t i = 0; i < vocab; ++i) {  // one sequence full of ties, and with gaps
      float& logit = logits[size_t(i)];
      logit = i % 11 == 3 ? std::nanf("") : std::round(logit);
    }
    for (const Options& options :
         {Options{1.0f, 0, 1.0f}, Options{0.8f, 40, 0.95f}, Options{1.5f, 7, 1.0f},
          Options{0.7f, 0, 0.9f}, Options{1.0f, 1, 0.5f}, Options{1.0f, 3, 0.0f},
          Options{3.0f, 100000, 0.99f}}) {
      const auto drawn = sample_steps(logits, kBatch, vocab, options, kSteps, 11);
      EXPECT_EQ(count_wrong_draws(logits, vocab, options, kSteps, 11, drawn), 0)
          << vocab << ": " << options.temperature << ", " << options.top_k << ", " << options.top_p;
      EXPECT_EQ(sample_steps(logits, kBatch, vocab, options, kSteps, 11), drawn);
      if (vocab >= 1000 && options.top_k != 1 && options.top_p > 0.0f) {  // another seed is seen
        EXPECT_GT(count_wrong_draws(logits, vocab, options, kSteps, 12, drawn), kSteps / 4);
      }
    }
  }
}

}  // namespace
}  // namespace longdecode::testing
