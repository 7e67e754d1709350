// Batches of prompts on the CUDA device: what is chosen is what the double-precision forward pass
// of that prompt alone allows, whatever the neighbours, their lengths and their ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runner/model/batch.h"
#include "tests/gpu/session_rig.h"
#include "tests/support/batch_texts.h"

namespace longdecode::runner {
namespace {

class GpuBatch : public GpuModel {
 protected:
  // More than a batch has places, of lengths around pages of 64 and chunks of 100, one of a token.
  static std::vector<BatchPrompt> prompts(const Rig& rig) {
    std::vector<BatchPrompt> prompts;
    const int32_t ends[] = {250, 1, 64, 100, 130, 7, 199, 63, 128, 33, 101};
    for (int32_t i = 0; i < 11; ++i) {
      prompts.push_back({rig.some(0, ends[i]), 5 + (i * 53) % 140, uint64_t(100 + i)});
    }
    return prompts;
  }
  static BatchRequest request(const std::vector<BatchPrompt>& prompts, float temperature,
                              Texts* texts) {
    return text_request(prompts, {.temperature = temperature, .top_k = 0, .top_p = 1.0f, .seed = 0},
                        texts);
  }
  static SessionOptions batched(Method method, int32_t max_batch) {
    SessionOptions options = Rig::options();
    options.method = method;
    options.ffd.delta = std::numeric_limits<float>::infinity();
    options.ffd.sink_tokens = options.ffd.recent_tokens = 16;
    options.max_batch = max_batch;
    return options;
  }
  static Texts run(Session* session, const std::vector<BatchPrompt>& all, float temperature) {
    Texts texts;
    const Status status = session->generate_batch(request(all, temperature, &texts));
    EXPECT_TRUE(status.ok()) << status.message();
    return texts;
  }
  // Greedy tokens that are further below the largest logit than two logits can be wrong:
  // sqrt(2) * the error of all.
  static int64_t count_wrong(const Rig& rig, const BatchPrompt& prompt,
                             const std::vector<int32_t>& text) {
    tests::LlamaReference reference(*rig.model);
    std::vector<double> logits;
    for (const int32_t token : prompt.tokens) logits = reference.next(token);
    int64_t wrong = 0;
    for (const int32_t token : text) {
      double size = 0.0;
      for (const double logit : logits) size += logit * logit;
      const double best = *std::max_element(logits.begin(), logits.end());
      const double allowed = std::sqrt(2.0 * size) * kBf16Error;
      wrong += logits[static_cast<size_t>(token)] < best - allowed;
      logits = reference.next(token);
    }
    return wrong;
  }
};

TEST_P(GpuBatch, RaggedPromptsGoTogether) {
  const Rig rig(shape());
  const std::vector<BatchPrompt> all = prompts(rig);
  for (const Method method : {Method::kDense, Method::kFfd}) {
    for (const int32_t max_batch : {2, 5, 8}) {
      Session session = rig.make(batched(method, max_batch));
      const Texts texts = run(&session, all, 0.0f);
      int64_t num_fed = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(static_cast<int64_t>(texts[i].size()), all[i].max_tokens);
        EXPECT_EQ(count_wrong(rig, all[i], texts[i]), 0) << "prompt " << i << " of " << max_batch;
        num_fed += all[i].max_tokens - 1;
      }
      EXPECT_EQ(session.stats().decode_steps, num_fed);
      EXPECT_GT(session.stats().kept_fraction, 0.99);
      EXPECT_LT(session.stats().kept_fraction, 1.0 + 1e-9);
      EXPECT_EQ(run(&session, all, 0.0f), texts) << "a second batch of the same session";
    }
  }
}

// With one place the kernels are those of a session alone: the same bits.
TEST_P(GpuBatch, OneAtATimeIsASessionOfItsOwn) {
  const Rig rig(shape());
  const std::vector<BatchPrompt> all = prompts(rig);
  for (const float temperature : {0.0f, 1.0f}) {
    Session batch = rig.make(batched(Method::kDense, 1));
    const Texts texts = run(&batch, all, temperature);
    for (size_t i = 0; i < all.size(); ++i) {
      Session alone = rig.make(batched(Method::kDense, 1));
      ASSERT_TRUE(alone.prefill(all[i].tokens, nullptr).ok());
      std::vector<int32_t> text;
      GenerateRequest request;
      request.sampler = {
          .temperature = temperature, .top_k = 0, .top_p = 1.0f, .seed = all[i].seed};
      request.max_tokens = all[i].max_tokens;
      request.on_token = [&](int32_t token) {
        text.push_back(token);
        return TokenVerdict::kContinue;
      };
      ASSERT_TRUE(alone.generate(request).ok());
      EXPECT_EQ(texts[i], text) << "prompt " << i;
    }
  }
}

TEST_P(GpuBatch, GraphsChangeNoToken) {
  const Rig rig(shape());
  const std::vector<BatchPrompt> all = prompts(rig);
  Texts expected;
  for (const GraphMode graph : {GraphMode::kOff, GraphMode::kBlock, GraphMode::kAnyLength}) {
    SessionOptions options = batched(Method::kFfd, 4);
    options.ffd.delta = 1.0f;
    options.graph = graph;
    Session session = rig.make(options);
    const Texts texts = run(&session, all, 1.0f);
    if (graph == GraphMode::kOff) expected = texts;
    EXPECT_EQ(texts, expected);
    if (graph == GraphMode::kAnyLength) {
      EXPECT_LE(session.stats().graph.num_captures, 4);  // one for each batch size
    }
  }
}

// A sequence that ends leaves while the device is a step ahead; the others lose and double nothing.
TEST_P(GpuBatch, VerdictsEndPromptsAtAnyStep) {
  const Rig rig(shape());
  const std::vector<BatchPrompt> all = prompts(rig);
  for (const Method method : {Method::kDense, Method::kFfd}) {
    Session session = rig.make(batched(method, 4));
    Texts texts;
    BatchRequest stops = request(all, 0.0f, &texts);
    stops.on_token = [&](int64_t prompt_idx, int32_t token) {
      auto& text = texts[static_cast<size_t>(prompt_idx)];
      text.push_back(token);
      const bool ends = static_cast<int64_t>(text.size()) == 1 + 17 * prompt_idx % 70;
      return ends ? TokenVerdict::kStop : TokenVerdict::kContinue;
    };
    const Status status = session.generate_batch(stops);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t length =
          std::min<int64_t>(all[i].max_tokens, 1 + 17 * static_cast<int64_t>(i) % 70);
      EXPECT_EQ(static_cast<int64_t>(texts[i].size()), length);
      EXPECT_EQ(count_wrong(rig, all[i], texts[i]), 0) << "prompt " << i;
    }
    // The session is as it was before: a prompt of its own, then decode.
    EXPECT_LT(rig.error_of(&session, 130, 200), kBf16Error);
  }
}

TEST_P(GpuBatch, PagesAndBans) {
  const Rig rig(shape());
  const std::vector<BatchPrompt> all = prompts(rig);
  SessionOptions options = batched(Method::kDense, 8);
  options.num_pages = 7;  // of 64 tokens; the longest needs 4
  Session session = rig.make(options);
  const Texts texts = run(&session, all, 0.0f);
  std::vector<int32_t> banned;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(count_wrong(rig, all[i], texts[i]), 0) << "prompt " << i;
    banned.push_back(texts[i][0]);
  }
  Texts others;
  BatchRequest bans = request(all, 0.0f, &others);
  bans.banned = banned;
  ASSERT_TRUE(session.generate_batch(bans).ok());
  for (const auto& text : others) {
    for (const int32_t token : text) {
      EXPECT_EQ(std::find(banned.begin(), banned.end(), token), banned.end());
    }
  }
  EXPECT_EQ(run(&session, all, 0.0f), texts);  // bans end with their batch
}

TEST_P(GpuBatch, RefusesMoreThanItCan) {
  const Rig rig(shape());
  const auto session = Session::create(rig.model, batched(Method::kDense, 9));
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session.status().message(), "max_batch is 9; 1 to 8 is allowed");
}

INSTANTIATE_TEST_SUITE_P(Architectures, GpuBatch, ::testing::Values("llama", "qwen2", "qwen3"));

}  // namespace
}  // namespace longdecode::runner
