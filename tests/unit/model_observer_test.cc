// What a session shows to its observer.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/errors.h"
#include "tests/unit/model_session_fixture.h"

namespace longdecode::runner {
namespace {

struct Observed {
  std::vector<std::vector<int64_t>> calls;        // layer, first token, tokens
  std::map<int32_t, std::vector<float>> q, k, v;  // by layer, token after token
};

class ObserverTest : public SessionTest {
 protected:
  static Observed observe(int32_t prefill_chunk, int32_t prompt, int32_t count) {
    Observed seen;
    const ModelConfig& config = model_->config();
    SessionOptions with_observer = options();
    with_observer.prefill_chunk = prefill_chunk;
    with_observer.observer = [&](const LayerTensors& step) {
      seen.calls.push_back({step.layer_idx, step.first_token, step.num_tokens});
      const auto append = [&](std::vector<float>& to, const float* from, int64_t row) {
        to.insert(to.end(), from, from + step.num_tokens * row);
      };
      append(seen.q[step.layer_idx], step.q, config.q_dim());
      append(seen.k[step.layer_idx], step.k, config.kv_dim());
      append(seen.v[step.layer_idx], step.v, config.kv_dim());
      return Status();
    };
    Session session = make(with_observer);
    (void)error_of(&session, prompt, count);
    return seen;
  }
};

TEST_F(ObserverTest, SeesEveryLayerOfEveryStep) {
  const Observed seen = observe(16, 24, 26);
  std::vector<std::vector<int64_t>> expected;
  for (const auto& [first, count] : {std::pair(0, 16), {16, 8}, {24, 1}, {25, 1}}) {
    for (int64_t layer = 0; layer < model_->config().num_layers; ++layer) {
      expected.push_back({layer, first, count});
    }
  }
  EXPECT_EQ(seen.calls, expected);
}

TEST_F(ObserverTest, TensorsDoNotDependOnTheChunks) {
  const Observed chunks = observe(16, 24, 26);
  const Observed tokens = observe(1, 1, 26);
  const ModelConfig& config = model_->config();
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    EXPECT_EQ(chunks.q.at(layer).size(), size_t(26 * config.q_dim()));
    for (const auto member : {&Observed::q, &Observed::k, &Observed::v}) {
      const std::vector<float>& a = (chunks.*member).at(layer);
      const std::vector<float>& b = (tokens.*member).at(layer);
      const std::vector<double> expected(b.begin(), b.end());
      EXPECT_LT(relative_error(a, expected), kPrefillError) << layer;
    }
  }
}

TEST_F(ObserverTest, AnErrorEndsTheStep) {
  SessionOptions failing = options();
  failing.observer = [](const LayerTensors& step) {
    return step.layer_idx == 1 ? invalid_argument("enough") : Status();
  };
  Session session = make(failing);
  const Status status = session.prefill(tokens(0, 8), nullptr);
  EXPECT_EQ(status.message(), "enough");
  EXPECT_EQ(session.num_tokens(), 0);
}

}  // namespace
}  // namespace longdecode::runner
