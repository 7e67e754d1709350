// Sessions that decode with FFD.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/model_session_fixture.h"

namespace longdecode::runner {
namespace {

TEST_F(SessionTest, FfdThatKeepsEverythingIsNearDense) {
  // Keys within 1/1024 of their range on a page: about 2e-3 of a standard deviation in each score.
  SessionOptions ffd = options();
  ffd.method = Method::kFfd;
  ffd.ffd.delta = std::numeric_limits<float>::infinity();
  ffd.prefill_chunk = 1;
  Session session = make(ffd);
  EXPECT_LT(error_of(&session, 200, 230), 1e-2);
  EXPECT_DOUBLE_EQ(session.stats().kept_fraction, 1.0);
}

TEST_F(SessionTest, FfdDropsTokensOnlyWhereItMay) {
  SessionOptions ffd = options();
  ffd.method = Method::kFfd;
  ffd.ffd = {.delta = 0.0f, .sink_tokens = 16, .recent_tokens = 16};
  Session selective = make(ffd);
  (void)error_of(&selective, 280, 290);
  const double kept = selective.stats().kept_fraction;
  EXPECT_GT(kept, 0.1);
  EXPECT_LT(kept, 1.0);
  ffd.dense_layers = {0};
  Session half_dense = make(ffd);
  (void)error_of(&half_dense, 280, 290);
  EXPECT_GT(half_dense.stats().kept_fraction, kept);
  EXPECT_LT(half_dense.stats().kept_fraction, 1.0);
  ffd.dense_layers = {1, 0};
  Session all_dense = make(ffd);
  EXPECT_LT(error_of(&all_dense, 280, 290), kPrefillError);
  EXPECT_DOUBLE_EQ(all_dense.stats().kept_fraction, 1.0);
}

TEST_F(SessionTest, LayersHaveTheirOwnDelta) {
  SessionOptions base = options();
  base.method = Method::kFfd;
  base.ffd = {.delta = 0.0f, .sink_tokens = 16, .recent_tokens = 16};
  const auto logits_of = [&](std::vector<int32_t> dense_layers, std::vector<LayerDelta> deltas) {
    SessionOptions ffd = base;
    ffd.dense_layers = std::move(dense_layers);
    ffd.layer_deltas = std::move(deltas);
    Session session = make(ffd);
    (void)error_of(&session, 280, 290);
    return std::pair(std::vector(session.logits().begin(), session.logits().end()),
                     session.stats().kept_fraction);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const auto plain = logits_of({}, {});
  EXPECT_EQ(logits_of({}, {{0, 0.0f}, {1, 0.0f}}), plain);
  EXPECT_EQ(logits_of({}, {{1, infinity}}), logits_of({1}, {}));
  EXPECT_EQ(logits_of({0}, {{1, infinity}}), logits_of({0, 1}, {}));
  EXPECT_GT(logits_of({}, {{0, 3.0f}}).second, plain.second);

  const auto refused = [&](std::vector<LayerDelta> deltas, const char* part) {
    SessionOptions ffd = base;
    ffd.dense_layers = {0};
    ffd.layer_deltas = std::move(deltas);
    const auto session = Session::create(model_, ffd);
    ASSERT_FALSE(session.ok());
    EXPECT_NE(session.status().message().find(part), std::string::npos);
  };
  refused({{2, 1.0f}}, "layer_deltas has layer 2");
  refused({{-1, 1.0f}}, "layer_deltas has layer -1");
  refused({{0, 1.0f}}, "dense_layers has already");
  refused({{1, 1.0f}, {1, 2.0f}}, "has already");
  refused({{1, std::nanf("")}}, "delta nan");
}

}  // namespace
}  // namespace longdecode::runner
