// Dense MLA decode on the latent cache: V is the first 512 channels of the 576-channel key rows.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

TEST(MlaOp, Case09HeadCounts) {
  std::vector<ProblemSpec> specs;
  for (const int32_t heads : {1, 3, 8, 9, 16, 20, 24, 40, 63, 64, 96, 126, 128}) {
    specs.push_back(mla_spec(DType::kBF16, heads, 64, {100, 65}));
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(MlaOp, QuickCase09FewHeads) {
  std::vector<ProblemSpec> specs;
  for (const int32_t heads : {1, 3, 16}) {
    specs.push_back(mla_spec(DType::kBF16, heads, 16, {40, 0, 17}));
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(MlaOp, Case06And11LengthsPagesAndOrders) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int32_t page_size : {1, 16, 32, 64, 128}) {
      specs.push_back(mla_spec(dtype, 4, page_size,
                               {1, std::max(1, page_size - 1), page_size, page_size + 1,
                                std::max(1, 2 * page_size - 1)}));
      specs.back().page_order = page_size == 32 ? PageOrder::kHighIds : PageOrder::kDescending;
    }
  }
  for (const int32_t kv_len : {511, 513, 1025, 2049}) {
    specs.push_back(mla_spec(DType::kBF16, 5, 64, {kv_len, 3}));
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(MlaOp, Case12And13QueryTokensAndStrides) {
  std::vector<ProblemSpec> specs;
  for (const int32_t query_len : {2, 3, 4, 8}) {
    specs.push_back(mla_spec(DType::kBF16, 6, 64, {5, 70, 130}));
    specs.back().query_len = query_len;
    specs.back().strided_q = true;
  }
  specs.push_back(mla_spec(DType::kBF16, 16, 64, {40, 0, 200}));
  specs.back().query_len = 4;
  specs.back().query_lens = {1, 0, 4};
  specs.push_back(mla_spec(DType::kBF16, 1, 16, {40}));
  specs.back().garbage_unit_strides = true;
  specs.push_back(mla_spec(DType::kBF16, 20, 64, {70, 40, 2, 200}));
  specs.back().query_len = 3;
  specs.back().query_lens = {0, 3, 3, 0};
  specs.back().desc.max_query_len = 8;
  specs.back().desc.max_batch = 7;
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(MlaOp, Case06IdenticalSequencesGiveIdenticalBits) {
  for (const int32_t heads : {8, 64}) {
    for (const int32_t kv_len : {65, 500, sized(1500, 300)}) {
      ProblemSpec spec = mla_spec(DType::kBF16, heads, 64, std::vector<int32_t>(5, kv_len));
      spec.stream_ids.assign(5, 0);
      spec.desc.batch_invariant = true;
      const PagedProblem problem(spec);
      const Outputs outputs = run_plan(problem.desc(), problem.args());
      EXPECT_EQ(check(problem, outputs), "");
      for (int32_t b = 1; b < 5; ++b) {
        EXPECT_EQ(same_bits(outputs, 0, outputs, b), "") << problem.repro();
      }
    }
  }
}

TEST(MlaOp, Case15EqualKeysAndEqualScores) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int32_t heads : {4, 16, 64}) {
      for (const int32_t kv_len : {130, sized(2049, 300)}) {
        specs.push_back(mla_spec(dtype, heads, 64, {kv_len, 64}));
        specs.back().note = "equal keys";
        specs.back().edit = [](LogicalSequence& s, int32_t) {
          for (int32_t j = 1; j < s.kv_len; ++j) std::copy_n(s.key(0, 0), s.key_dim, s.key(j, 0));
        };
        specs.push_back(specs.back());
        specs.back().note = "queries of zeros";
        specs.back().edit = [](LogicalSequence& s, int32_t) {
          std::fill(s.q.begin(), s.q.end(), 0.0f);
        };
      }
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(MlaOp, Case14To21ScoresAndNeedles) {
  std::vector<ProblemSpec> specs;
  for (const double deviation : {0.01, 3.0}) {
    specs.push_back(mla_spec(DType::kBF16, 8, 64, {300}));
    specs.back().score_deviation = deviation;
  }
  for (const double level : {1e5, -5e4, -1e5}) {
    specs.push_back(mla_spec(DType::kBF16, 1, 64, {200, sized(3000, 300)}));
    specs.back().note = "scores around " + std::to_string(level);
    specs.back().edit = [=](LogicalSequence& s, int32_t) {
      for (int32_t j = 0; j < s.kv_len; ++j) s.plant_score(j, 0, level + j % 5, 0.07216878);
    };
  }
  for (const int32_t token : {0, 100, 191, 199}) {
    specs.push_back(mla_spec(DType::kBF16, 8, 64, {200}));
    specs.back().note = "needle at " + std::to_string(token);
    specs.back().edit = [=](LogicalSequence& s, int32_t) {
      s.plant_score(token, 5, 25.0, 0.07216878);
    };
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(MlaOp, Case27CapWindowAndSinks) {
  std::vector<ProblemSpec> specs;
  for (int32_t options = 1; options < 8; ++options) {
    specs.push_back(mla_spec(DType::kBF16, 4, 64, {600, 30}));
    specs.back().score_deviation = 3.0;
    if ((options & 1) != 0) specs.back().desc.soft_cap = 4.0f;
    if ((options & 2) != 0) specs.back().desc.sliding_window = 100;
    if ((options & 4) != 0) specs.back().desc.learned_sinks = true;
  }
  EXPECT_EQ(run_and_check(specs), "");
}

// Query tokens that see different tokens, of heads that no multiple of 16 divides: rows of a tile
// begin anywhere in a vector.
TEST(MlaOp, QuickCase27CapOfQueryTokens) {
  std::vector<ProblemSpec> specs;
  for (const int32_t heads : {3, 9, 31}) {
    specs.push_back(mla_spec(DType::kBF16, heads, 64, {200, 65}));
    specs.back().query_len = 3;
    specs.back().score_deviation = 3.0;
    specs.back().desc.soft_cap = 4.0f;
  }
  EXPECT_EQ(run_and_check(specs), "");
}

}  // namespace
}  // namespace longdecode::testing
