// The real model: facts that any right implementation reproduces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "runner/model/session.h"
#include "runner/tokenizer/from_gguf.h"
#include "tests/support/model_path.h"

namespace longdecode::runner {
namespace {

class RealModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = tests::model_path();
    if (path.empty()) GTEST_SKIP() << "no model: set LONGDECODE_MODEL, or `make run` once";
    auto model = Model::load(path);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = *model;
    auto tokenizer = load_tokenizer(model_->file());
    ASSERT_TRUE(tokenizer.ok());
    tokenizer_.emplace(std::move(tokenizer).value());
  }

  SessionOptions options(Method method) const {
    SessionOptions options;
    options.method = method;
    options.context_len = 512;
    options.device.num_threads = 1;
    return options;
  }
  static int32_t argmax(std::span<const float> logits) {
    return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  // ln of the probability that softmax(logits) gives to `token`.
  static double log_probability(std::span<const float> logits, int32_t token) {
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(double(logit));
    return double(logits[size_t(token)]) - std::log(sum);
  }

  std::shared_ptr<const Model> model_;
  std::optional<Tokenizer> tokenizer_;
};

TEST_F(RealModel, KnowsACapital) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    auto session = Session::create(model_, options(method));
    ASSERT_TRUE(session.ok()) << session.status().message();
    const Encoding prompt = tokenizer_->encode("The capital of France is");
    ASSERT_TRUE(session->prefill(prompt.ids, nullptr).ok());
    const int32_t token = argmax(session->logits());
    EXPECT_EQ(tokenizer_->decode(token), " Paris");
    ASSERT_TRUE(session->decode(token).ok());
    EXPECT_EQ(session->num_tokens(), int64_t(prompt.ids.size()) + 1);
  }
}

TEST_F(RealModel, PrefersEnglishToItsReversal) {
  const Encoding text = tokenizer_->encode(
      "The sun rises in the east and sets in the west. Every morning people get up, have "
      "breakfast and go to work, and in the evening they come back home to their families.");
  std::vector<int32_t> reversed(text.ids.rbegin(), text.ids.rend());
  const auto perplexity = [&](const std::vector<int32_t>& ids) {
    auto session = Session::create(model_, options(Method::kDense));
    EXPECT_TRUE(session.ok());
    EXPECT_TRUE(session->prefill(std::span(ids).first(1), nullptr).ok());
    double sum = 0.0;
    for (size_t i = 1; i < ids.size(); ++i) {
      sum -= log_probability(session->logits(), ids[i]);
      EXPECT_TRUE(session->decode(ids[i]).ok());
    }
    return std::exp(sum / double(ids.size() - 1));
  };
  EXPECT_LT(perplexity(text.ids), 12.0);
  EXPECT_GT(perplexity(reversed), 200.0);
}

}  // namespace
}  // namespace longdecode::runner
