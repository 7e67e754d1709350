#include "runner/sampler/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace longdecode::runner {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampler make(const SamplerOptions& options) {
  Result<Sampler> sampler = Sampler::create(options);
  EXPECT_TRUE(sampler.ok()) << sampler.status().message();
  return std::move(sampler).value();
}

int32_t pick(Sampler& sampler, const std::vector<float>& logits) {
  const Result<int32_t> token = sampler.sample(logits);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? *token : -1;
}

std::vector<int64_t> count_draws(const SamplerOptions& options, const std::vector<float>& logits,
                                 int num_draws) {
  Sampler sampler = make(options);
  std::vector<int64_t> counts(logits.size());
  for (int i = 0; i < num_draws; ++i) ++counts[pick(sampler, logits)];
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdOfEqualOnes) {
  Sampler sampler = make({.temperature = 0.0f});
  EXPECT_EQ(pick(sampler, {1, 3, 2}), 1);
  EXPECT_EQ(pick(sampler, {1, 3, 3}), 1);
  EXPECT_EQ(pick(sampler, {-5, kNan, -4, kNan}), 2);
  EXPECT_EQ(pick(sampler, {0, kInf, kInf}), 1);
  EXPECT_EQ(pick(sampler, {-kInf, -1e38f}), 1);
}

TEST(Sampler, NothingToChooseFromIsAnError) {
  for (float temperature : {0.0f, 1.0f}) {
    Sampler sampler = make({.temperature = temperature});
    for (const std::vector<float>& logits :
         {std::vector<float>{}, std::vector<float>{kNan, kNan}, std::vector<float>{-kInf, -kInf}}) {
      EXPECT_EQ(sampler.sample(logits).status().code(), StatusCode::kInvalidArgument);
    }
  }
}

TEST(Sampler, OddLogitsNeverChooseWhatCannotBe) {
  const std::vector<float> logits = {kNan, -kInf, 1.0f, kNan, 1.0f};
  const std::vector<int64_t> counts =
      count_draws({.temperature = 1.0f, .top_p = 1.0f}, logits, 200);
  EXPECT_EQ(counts[0] + counts[1] + counts[3], 0);
  EXPECT_GT(counts[2], 0);
  EXPECT_GT(counts[4], 0);
  EXPECT_EQ(count_draws({.temperature = 1e-38f}, {1, 2, 1}, 20)[1], 20);
  EXPECT_EQ(count_draws({.temperature = 1.0f}, {5, kInf, 5}, 20)[1], 20);
  EXPECT_EQ(count_draws({.temperature = 1.0f}, {-3e38f, 3e38f}, 20)[1], 20);
}

TEST(Sampler, SameSeedSameTokens) {
  const std::vector<float> logits(100, 0.0f);
  const SamplerOptions options = {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .seed = 42};
  Sampler first = make(options);
  Sampler second = make(options);
  Sampler other = make({.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .seed = 43});
  int num_different = 0;
  for (int i = 0; i < 50; ++i) {
    const int32_t token = pick(first, logits);
    EXPECT_EQ(token, pick(second, logits));
    num_different += token != pick(other, logits);
  }
  EXPECT_GT(num_different, 25);
  // Fixed by mt19937_64 alone, so the same with every compiler and library.
  Sampler known = make({.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .seed = 5489});
  EXPECT_EQ(pick(known, logits), 78);  // 14514284786278117030 / 2^64 = 0.7868
}

TEST(Sampler, TopKKeepsTheLargest) {
  const std::vector<float> logits = {0.0f, 3.0f, 1.0f, 2.0f};
  const auto counts = count_draws({.temperature = 5.0f, .top_k = 2, .top_p = 1.0f}, logits, 500);
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_GT(counts[1], counts[3]);
  EXPECT_GT(counts[3], 0);
  EXPECT_EQ(count_draws({.temperature = 5.0f, .top_k = 1}, logits, 20)[1], 20);
  EXPECT_EQ(count_draws({.temperature = 5.0f, .top_k = 1000}, logits, 20).size(), 4u);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  // Probabilities 0.5, 0.3, 0.2.
  const std::vector<float> logits = {std::log(0.3f), std::log(0.5f), std::log(0.2f)};
  const auto with = [&](float top_p) {
    return count_draws({.temperature = 1.0f, .top_k = 0, .top_p = top_p}, logits, 400);
  };
  EXPECT_EQ(with(0.0f)[1], 400);
  EXPECT_EQ(with(0.45f)[1], 400);
  EXPECT_EQ(with(0.7f)[2], 0);
  EXPECT_GT(with(0.7f)[0], 0);
  EXPECT_GT(with(0.9f)[2], 0);
  EXPECT_GT(with(1.0f)[2], 0);
}

TEST(Sampler, FrequenciesFollowTheTemperature) {
  const std::vector<float> logits = {0.0f, 2.0f};
  constexpr int kDraws = 20000;
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    const SamplerOptions options = {.temperature = temperature, .top_k = 0, .top_p = 1.0f};
    const auto counts = count_draws(options, logits, kDraws);
    const double expected = 1.0 / (1.0 + std::exp(-2.0 / temperature));
    const double deviation = std::sqrt(expected * (1.0 - expected) / kDraws);
    EXPECT_NEAR(static_cast<double>(counts[1]) / kDraws, expected, 5.0 * deviation);
  }
}

TEST(Sampler, BadOptionsAreNamed) {
  struct Case {
    SamplerOptions options;
    const char* message;
  };
  const Case cases[] = {
      {{.temperature = -1.0f}, "temperature is -1"},
      {{.temperature = kNan}, "temperature is nan"},
      {{.temperature = kInf}, "temperature is inf"},
      {{.top_k = -1}, "top_k is -1"},
      {{.top_p = 1.5f}, "top_p is 1.5"},
      {{.top_p = -0.1f}, "top_p is -0.1"},
      {{.top_p = kNan}, "top_p is nan"},
  };
  for (const Case& bad : cases) {
    const Status status = Sampler::create(bad.options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(bad.message), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace longdecode::runner
