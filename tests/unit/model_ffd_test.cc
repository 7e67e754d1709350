// Sessions that decode with FFD.
#include <gtest/gtest.h>

#include <limits>

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

}  // namespace
}  // namespace longdecode::runner
