// Sessions of tiny random models on the CUDA device against a double-precision forward pass, and
// against themselves: graphs, generation, continuation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "longdecode/attention.h"
#include "runner/model/session.h"
#include "tests/gpu/session_rig.h"

namespace longdecode::runner {
namespace {

std::vector<float> logits_of(const Session& session) {
  return {session.logits().begin(), session.logits().end()};
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST_P(GpuModel, DenseMatchesDoubleForward) {
  const Rig rig(shape());
  for (const int32_t prompt : {1, 7, 8, 130, 250}) {
    Session session = rig.make(Rig::options());
    EXPECT_LT(rig.error_of(&session, prompt, kNumTokens), kBf16Error) << "prompt " << prompt;
    EXPECT_EQ(session.num_tokens(), kNumTokens);
    EXPECT_EQ(session.stats().kept_fraction, 1.0);
  }
}

TEST_P(GpuModel, FfdThatKeepsEverythingMatchesDoubleForward) {
  const Rig rig(shape());
  SessionOptions options = Rig::options();
  options.method = Method::kFfd;
  options.ffd.delta = std::numeric_limits<float>::infinity();
  options.ffd.sink_tokens = options.ffd.recent_tokens = 16;
  for (const int32_t prompt : {1, 130, 250}) {
    Session session = rig.make(options);
    EXPECT_LT(rig.error_of(&session, prompt, kNumTokens), kBf16Error) << "prompt " << prompt;
  }
}

TEST_P(GpuModel, FfdKeepsSomeTokens) {
  const Rig rig(shape());
  SessionOptions options = Rig::options();
  options.method = Method::kFfd;
  options.ffd.delta = 0.0f;
  options.ffd.sink_tokens = options.ffd.recent_tokens = 16;
  Session session = rig.make(options);
  (void)rig.error_of(&session, 250, kNumTokens);
  const SessionStats stats = session.stats();
  EXPECT_EQ(stats.decode_steps, kNumTokens - 250);
  EXPECT_GT(stats.kept_fraction, 0.3);  // sink, recent and what is not quantised yet
  EXPECT_LT(stats.kept_fraction, 1.0);
  EXPECT_GT(stats.kv_bytes_read_per_token, 0.0);
}

TEST_P(GpuModel, GraphsChangeNoBit) {
  const Rig rig(shape());
  std::vector<std::vector<float>> all;
  for (const GraphMode graph : {GraphMode::kOff, GraphMode::kBlock, GraphMode::kAnyLength}) {
    SessionOptions options = Rig::options();
    options.graph = graph;
    Session session = rig.make(options);
    (void)rig.error_of(&session, 50, kNumTokens);
    all.push_back(logits_of(session));
    // The first step runs without a graph; token 256 enters a new block.
    const int64_t captures = graph == GraphMode::kOff ? 0 : graph == GraphMode::kBlock ? 2 : 1;
    EXPECT_EQ(session.stats().graph.num_captures, captures);
  }
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
}

// What the device chooses on its own is what the host would choose step by step.
TEST_P(GpuModel, GenerateEqualsDecodeByDecode) {
  const Rig rig(shape());
  for (const Method method : {Method::kDense, Method::kFfd}) {
    SessionOptions options = Rig::options();
    options.method = method;
    Session by_host = rig.make(options);
    Session by_device = rig.make(options);
    ASSERT_TRUE(by_host.prefill(rig.some(0, 40), nullptr).ok());
    ASSERT_TRUE(by_device.prefill(rig.some(0, 40), nullptr).ok());
    std::vector<int32_t> expected;
    for (int32_t i = 0; i < 200; ++i) {
      expected.push_back(argmax(by_host.logits()));
      if (i == 199) break;
      ASSERT_TRUE(by_host.decode(expected.back()).ok());
    }
    std::vector<int32_t> chosen;
    GenerateRequest request;
    request.sampler.temperature = 0.0f;
    request.max_tokens = 200;
    request.on_token = [&](int32_t token) {
      chosen.push_back(token);
      return TokenVerdict::kContinue;
    };
    const Result<int64_t> num_fed = by_device.generate(request);
    ASSERT_TRUE(num_fed.ok()) << num_fed.status().message();
    EXPECT_EQ(*num_fed, 199);
    EXPECT_EQ(chosen, expected);
    EXPECT_EQ(by_device.num_tokens(), by_host.num_tokens());
    EXPECT_EQ(logits_of(by_device), logits_of(by_host));
  }
}

// Stopping after or before a token, at a window's edge too, leaves the sequence as if the host had
// fed the tokens; it goes on from there.
TEST_P(GpuModel, GenerateStopsWhereItIsTold) {
  const Rig rig(shape());
  for (const Method method : {Method::kDense, Method::kFfd}) {
    for (const int32_t stop_at : {0, 1, 5, 127, 128, 129, 130}) {
      for (const TokenVerdict verdict : {TokenVerdict::kStop, TokenVerdict::kStopAndDrop}) {
        SessionOptions options = Rig::options();
        options.method = method;
        Session session = rig.make(options);
        ASSERT_TRUE(session.prefill(rig.some(0, 60), nullptr).ok());
        std::vector<int32_t> kept;
        GenerateRequest request;
        request.sampler.temperature = 0.0f;
        request.max_tokens = 180;
        request.on_token = [&](int32_t token) {
          const bool stops = static_cast<int32_t>(kept.size()) == stop_at;
          if (!stops || verdict == TokenVerdict::kStop) kept.push_back(token);
          return stops ? verdict : TokenVerdict::kContinue;
        };
        const Result<int64_t> num_fed = session.generate(request);
        ASSERT_TRUE(num_fed.ok()) << num_fed.status().message();
        EXPECT_EQ(*num_fed, static_cast<int64_t>(kept.size()));
        Session by_host = rig.make(options);
        ASSERT_TRUE(by_host.prefill(rig.some(0, 60), nullptr).ok());
        for (const int32_t token : kept) ASSERT_TRUE(by_host.decode(token).ok());
        EXPECT_EQ(session.num_tokens(), by_host.num_tokens());
        EXPECT_EQ(logits_of(session), logits_of(by_host)) << stop_at;
        ASSERT_TRUE(session.prefill(rig.some(100, 120), nullptr).ok());
        ASSERT_TRUE(by_host.prefill(rig.some(100, 120), nullptr).ok());
        EXPECT_EQ(logits_of(session), logits_of(by_host)) << stop_at;
      }
    }
  }
}

TEST_P(GpuModel, SeedsAndBans) {
  const Rig rig(shape());
  const auto generate = [&](uint64_t seed, std::vector<int32_t> banned) {
    Session session = rig.make(Rig::options());
    EXPECT_TRUE(session.prefill(rig.some(0, 20), nullptr).ok());
    std::vector<int32_t> tokens;
    GenerateRequest request;
    request.sampler = {.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .seed = seed};
    request.banned = banned;
    request.max_tokens = 100;
    request.on_token = [&](int32_t token) {
      tokens.push_back(token);
      return TokenVerdict::kContinue;
    };
    EXPECT_TRUE(session.generate(request).ok());
    for (const float logit : session.logits()) EXPECT_TRUE(std::isfinite(logit));
    return tokens;
  };
  const std::vector<int32_t> first = generate(1, {});
  EXPECT_EQ(generate(1, {}), first);
  EXPECT_NE(generate(2, {}), first);
  for (const int32_t token : generate(1, first)) {
    EXPECT_EQ(std::find(first.begin(), first.end(), token), first.end());
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, GpuModel, ::testing::Values("llama", "qwen2", "qwen3"));

}  // namespace
}  // namespace longdecode::runner

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = longdecode::detect_device(longdecode::DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
