// FFD decode over the two-plane format: the same sections of cases as dense, and the selection.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

// Few sink and recent tokens, so that short sequences have something to select from.
ProblemSpec ffd_spec(DType dtype, int32_t num_q_heads, int32_t num_kv_heads, int32_t head_dim,
                     int32_t page_size, std::vector<int32_t> kv_lens) {
  ProblemSpec spec = gqa_spec(Method::kFfd, dtype, num_q_heads, num_kv_heads, head_dim, page_size,
                              std::move(kv_lens));
  spec.desc.ffd.sink_tokens = 16;
  spec.desc.ffd.recent_tokens = 20;
  spec.desc.ffd.delta = 3.0f;
  spec.score_deviation = 3.0;
  return spec;
}

ProblemSpec small_spec(std::vector<int32_t> kv_lens) {
  return ffd_spec(DType::kBF16, 8, 2, 64, 64, std::move(kv_lens));
}

// Whether a run kept the tile of a token.
bool keeps(const Outputs& outputs, int32_t kv_head, int64_t token) {
  return outputs.tiles[0].has(kv_head, token / kTileTokens);
}

TEST(FfdOp, QuickCase01To03MemoryThatIsNotYours) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : kDTypes) {
    for (const int32_t page_size : {64, 128}) {
      specs.push_back(ffd_spec(dtype, 8, 2, 64, page_size, {13, 500, 3 * page_size + 7}));
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase04AppendingBehindASharedPrefixLeavesTheOtherSequenceAlone) {
  EXPECT_EQ(check_shared_prefix(small_spec({200, 210}), 301), "");
}

TEST(FfdOp, QuickCase05EmptySequences) {
  EXPECT_EQ(run_and_check({small_spec({0, 300, 0, 33}), small_spec({0, 0}), small_spec({0})}), "");
}

TEST(FfdOp, QuickCase06PageAndQuantisationEdges) {
  std::vector<ProblemSpec> specs;
  for (const int32_t page_size : {64, 128}) {
    for (const double deviation : {0.01, 1.0, 3.0}) {
      specs.push_back(ffd_spec(DType::kBF16, 4, 2, 64, page_size,
                               {1, 7, 8, 9, page_size - 1, page_size, page_size + 1, page_size + 7,
                                page_size + 8, page_size + 9, 2 * page_size - 1, 2 * page_size,
                                2 * page_size + 7, 2 * page_size + 8, 5 * page_size + 50}));
      specs.back().score_deviation = deviation;
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, Case06LongAndShortSequences) {
  std::vector<ProblemSpec> specs = {small_spec({sized(8192, 2048) + 11, 1, 5, 170, 33, 200})};
  for (const int32_t kv_len : {1023, 1025, 2047, 2049, 4097}) {
    specs.push_back(small_spec({kv_len}));
    specs.push_back(ffd_spec(DType::kF16, 6, 3, 128, 128, {kv_len, 300}));
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase07NothingSurvivesTheSelection) {
  std::vector<ProblemSpec> specs;
  for (const int32_t query_len : {1, 4, 8}) {
    specs.push_back(small_spec({1500, 9, 80}));
    specs.back().query_len = query_len;
    specs.back().desc.ffd.delta = 0.0f;
    specs.back().note = "the first token has all the weight";
    specs.back().edit = [](LogicalSequence& s, int32_t) {
      for (int32_t i = 0; i < s.num_q_heads; ++i) {
        for (int32_t t = 0; t < s.query_len; ++t) {
          std::copy_n(s.query(0, 0), s.key_dim, s.query(t, i));
        }
      }
      for (int32_t h = 0; h < s.num_kv_heads; ++h) {
        s.plant_score(0, 4 * h, 60.0, 1.0 / std::sqrt(s.key_dim));
      }
    };
  }
  EXPECT_EQ(run_and_check(specs), "");
  const PagedProblem problem(specs[0]);
  const Outputs outputs = run_plan(problem.desc(), problem.args());
  ASSERT_EQ(check(problem, outputs), "");
  for (int64_t tile = 1; tile < 1400 / kTileTokens; ++tile) {
    EXPECT_FALSE(outputs.tiles[0].has(0, tile)) << tile;
  }
}

TEST(FfdOp, QuickCase09GroupSizes) {
  std::vector<ProblemSpec> specs;
  for (const int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    specs.push_back(ffd_spec(DType::kBF16, 2 * group, 2, 64, 64, {300, 430}));
    specs.push_back(ffd_spec(DType::kF16, 3 * group, 3, 128, 128, {400}));
    specs.back().query_len = 3;
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase10HeadDims) {
  std::vector<ProblemSpec> specs;
  for (const int32_t head_dim : {64, 80, 96, 128, 256}) {
    for (const DType dtype : kDTypes) {
      specs.push_back(ffd_spec(dtype, 8, 2, head_dim, 64, {500, 31}));
      specs.push_back(ffd_spec(dtype, 3, 1, head_dim, 128, {290}));
      specs.back().query_len = 2;
    }
    specs.push_back(ffd_spec(DType::kF16, 4, 2, head_dim, 64, {400}));
    specs.back().desc.q_dtype = DType::kF32;
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase11PageOrders) {
  std::vector<ProblemSpec> specs;
  for (const PageOrder order :
       {PageOrder::kInOrder, PageOrder::kScattered, PageOrder::kDescending, PageOrder::kHighIds}) {
    for (const int32_t page_size : {64, 128}) {
      specs.push_back(ffd_spec(DType::kBF16, 4, 2, 64, page_size, {450, 264}));
      specs.back().page_order = order;
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase12And13SeveralQueryTokensAndStrides) {
  std::vector<ProblemSpec> specs;
  for (const int32_t query_len : {1, 2, 3, 4, 8}) {
    for (const bool causal : {true, false}) {
      specs.push_back(small_spec({9, 72, 136, 430}));
      specs.back().query_len = query_len;
      specs.back().desc.causal = causal;
      specs.back().strided_q = true;
      specs.back().layout = PoolLayout::kNhd;
    }
  }
  specs.push_back(small_spec({350, 251, 152, 0, 90}));
  specs.back().query_len = 8;
  specs.back().query_lens = {8, 1, 3, 0, 5};
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase14HugeScores) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : kDTypes) {
    for (const double level : {1e5, -1e5, -5e4}) {
      if (dtype == DType::kF16 && level > 6e4) continue;
      specs.push_back(ffd_spec(dtype, 2, 2, 128, 64, {400}));
      specs.back().note = "scores around " + std::to_string(level);
      const double scale = resolved_scale(specs.back().desc);
      specs.back().edit = [=](LogicalSequence& s, int32_t) {
        for (int32_t j = 0; j < s.kv_len; ++j) {
          for (int32_t h = 0; h < 2; ++h) s.plant_score(j, h, level + 1e3 * (j % 11 - 5), scale);
        }
      };
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase15To18UnusualKeys) {
  std::vector<ProblemSpec> specs;
  const auto add = [&](const char* note, std::function<void(LogicalSequence&)> edit) {
    for (const DType dtype : kDTypes) {
      specs.push_back(ffd_spec(dtype, 8, 2, 128, 64, {450}));
      specs.back().note = note;
      specs.back().edit = [=](LogicalSequence& s, int32_t) { edit(s); };
    }
  };
  add("all keys equal", [](LogicalSequence& s) { std::fill(s.k.begin(), s.k.end(), 0.75f); });
  add("all keys zero", [](LogicalSequence& s) { std::fill(s.k.begin(), s.k.end(), 0.0f); });
  add("q = 0", [](LogicalSequence& s) { std::fill(s.q.begin(), s.q.end(), 0.0f); });
  add("one key 1e4 times larger", [](LogicalSequence& s) {
    for (int32_t c = 0; c < 128; ++c) s.key(100, 1)[c] *= 1e4f;
  });
  add("a page with 100 times the range", [](LogicalSequence& s) {
    for (int32_t j = 64; j < 128; ++j) {
      for (int32_t c = 0; c < 128; ++c) s.key(j, 0)[c] *= 100.0f;
    }
  });
  for (const float bias : {50.0f, -200.0f}) {
    add("K bias", [=](LogicalSequence& s) {
      for (float& x : s.k) x += bias;
    });
  }
  add("outlier channels", [](LogicalSequence& s) {
    for (size_t i = 5; i < s.k.size(); i += 32) s.k[i] *= 100.0f;
  });
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickCase17ABiasDoesNotChangeWhatIsKept) {
  ProblemSpec spec = ffd_spec(DType::kF16, 1, 1, 128, 64, {sized(3000, 1000)});
  spec.desc.ffd.delta = 0.5f;
  const PagedProblem plain(spec);
  spec.edit = [](LogicalSequence& s, int32_t) {
    for (size_t i = 0; i < s.k.size(); ++i) s.k[i] += static_cast<float>(i % 128) - 100.0f;
  };
  const PagedProblem biased(spec);
  const Outputs a = run_plan(plain.desc(), plain.args());
  const Outputs b = run_plan(biased.desc(), biased.args());
  ASSERT_EQ(check(plain, a), "");
  ASSERT_EQ(check(biased, b), "");
  const auto kept = static_cast<double>(a.tokens_attended[0]);
  EXPECT_LT(kept, 0.9 * spec.kv_lens[0]);
  EXPECT_NEAR(static_cast<double>(b.tokens_attended[0]), kept, 0.25 * kept);
}

TEST(FfdOp, QuickCase19SinkAndRecentTokensAreAlwaysAttended) {
  ProblemSpec spec = small_spec({1200});
  spec.desc.ffd.sink_tokens = 40;
  spec.desc.ffd.recent_tokens = 300;
  spec.desc.ffd.delta = 0.0f;
  const PagedProblem problem(spec);
  const Outputs outputs = run_plan(problem.desc(), problem.args());
  ASSERT_EQ(check(problem, outputs), "");
  for (int32_t h = 0; h < 2; ++h) {
    for (int64_t j = 0; j < 40; ++j) EXPECT_TRUE(keeps(outputs, h, j)) << j;
    for (int64_t j = 900; j < 1200; ++j) EXPECT_TRUE(keeps(outputs, h, j)) << j;
  }
  std::vector<ProblemSpec> specs;
  for (const int32_t sinks : {0, 1, 17, 128, 5000}) {
    for (const int32_t recent : {0, 1, 33, 128, 5000}) {
      specs.push_back(small_spec({100, 700}));
      specs.back().query_len = 2;
      specs.back().desc.ffd.sink_tokens = sinks;
      specs.back().desc.ffd.recent_tokens = recent;
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

// One head whose keys have fixed scores: 0 for the sinks and recent tokens, -14 in between, and
// `nats` for the token that is looked at.
ProblemSpec staged_spec(int32_t kv_len, int32_t token, double nats) {
  ProblemSpec spec = ffd_spec(DType::kF16, 1, 1, 128, 64, {kv_len});
  spec.desc.ffd.delta = 5.0f;
  const double scale = resolved_scale(spec.desc);
  spec.note = "token " + std::to_string(token) + " at " + std::to_string(nats);
  spec.edit = [=](LogicalSequence& s, int32_t) {
    for (int32_t j = 0; j < s.kv_len; ++j) {
      const bool always = j < 16 || j >= s.kv_len - 20;
      for (int32_t c = 0; c < 128; ++c) s.key(j, 0)[c] *= 0.01f;
      s.plant_score(j, 0, j == token ? nats : always ? 0.0 : -14.0, scale);
    }
  };
  return spec;
}

TEST(FfdOp, QuickCase20DeltaIsInNats) {
  for (const bool certified : {false, true}) {
    for (const double nats : {-2.0, 0.0, 8.0}) {
      ProblemSpec spec = staged_spec(1000, 500, nats);
      spec.desc.ffd.certified = certified;
      const PagedProblem problem(spec);
      const Outputs outputs = run_plan(problem.desc(), problem.args());
      ASSERT_EQ(check(problem, outputs), "");
      EXPECT_TRUE(keeps(outputs, 0, 500)) << nats;
    }
  }
  const PagedProblem problem(staged_spec(1000, 500, -20.0));
  const Outputs outputs = run_plan(problem.desc(), problem.args());
  ASSERT_EQ(check(problem, outputs), "");
  EXPECT_FALSE(keeps(outputs, 0, 500));
}

TEST(FfdOp, QuickCase20DeltasMarginsAndCertified) {
  std::vector<ProblemSpec> specs;
  for (const float delta : {0.0f, 1.0f, 5.0f, 7.0f, std::numeric_limits<float>::infinity()}) {
    for (const float sigmas : {0.0f, 1.0f, 3.0f}) {
      for (const bool certified : {false, true}) {
        specs.push_back(small_spec({900, 60}));
        specs.back().desc.ffd.delta = delta;
        specs.back().desc.ffd.margin_sigmas = sigmas;
        specs.back().desc.ffd.certified = certified;
        specs.back().query_len = sigmas > 0 ? 2 : 1;
      }
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, Case21NeedlesAtEveryPlaceAndLength) {
  for (const int32_t kv_len : {64, 72, 100, 200, 530, sized(4200, 800)}) {
    const int32_t quantized = std::max(0, (kv_len - 8) / 64 * 64);
    for (const int32_t token :
         {0, 15, 16, 63, kv_len / 2, quantized - 1, quantized, quantized - 40, kv_len - 1}) {
      if (token < 0 || token >= kv_len) continue;
      ProblemSpec spec = small_spec({kv_len});
      spec.score_deviation = 1.0;
      spec.note = "needle at " + std::to_string(token);
      const double scale = resolved_scale(spec.desc);
      spec.edit = [=](LogicalSequence& s, int32_t) { s.plant_score(token, 5, 25.0, scale); };
      const PagedProblem problem(spec);
      const Outputs outputs = run_plan(problem.desc(), problem.args());
      ASSERT_EQ(check(problem, outputs), "") << problem.repro();
      EXPECT_TRUE(keeps(outputs, 1, token)) << problem.repro();
    }
  }
}

TEST(FfdOp, QuickCase22OneHeadSeesTheNeedle) {
  std::vector<ProblemSpec> specs;
  for (const int32_t head : {0, 3, 7, 15}) {
    specs.push_back(ffd_spec(DType::kBF16, 16, 1, 128, 64, {900}));
    specs.back().desc.ffd.delta = 1.0f;
    specs.back().score_deviation = 0.5;
    specs.back().note = "only head " + std::to_string(head);
    specs.back().edit = [=](LogicalSequence& s, int32_t) {
      s.plant_score(400, head, 30.0, 1.0 / std::sqrt(128.0));
    };
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(FfdOp, QuickStatisticsAreOptional) {
  const PagedProblem problem(small_spec({900, 3, 72}));
  RunOptions none;
  none.statistics = false;
  const Outputs with = run_plan(problem.desc(), problem.args());
  Outputs without = run_plan(problem.desc(), problem.args(), none);
  EXPECT_EQ(check(problem, with), "");
  without.tiles.clear();
  EXPECT_EQ(same_bits(with, without), "");
}

TEST(FfdOp, QuickDenseMethodOverThePlanes) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : kDTypes) {
    specs.push_back(ffd_spec(dtype, 6, 2, 80, 64, {13, 300, 72, 0}));
    specs.push_back(ffd_spec(dtype, 4, 1, 128, 128, {sized(1500, 500)}));
    specs.back().query_len = 3;
    specs.back().desc.soft_cap = 6.0f;
    specs.back().desc.sliding_window = 210;
    specs.back().desc.learned_sinks = true;
  }
  for (ProblemSpec& spec : specs) spec.desc.method = Method::kDense;
  EXPECT_EQ(run_and_check(specs), "");
}

// Served or refused by the plan with a reason; never wrong numbers.
TEST(FfdOp, QuickCase27SoftCapWindowAndLearnedSinks) {
  for (int32_t options = 1; options < 8; ++options) {
    ProblemSpec spec = small_spec({700, 12});
    if ((options & 1) != 0) spec.desc.soft_cap = 4.0f;
    if ((options & 2) != 0) spec.desc.sliding_window = 150;
    if ((options & 4) != 0) spec.desc.learned_sinks = true;
    const Result<KernelChoice> choice = select_kernel(resolved_desc(spec), cpu_device());
    if (!choice.ok()) {
      EXPECT_EQ(choice.status().code(), StatusCode::kUnsupported);
      EXPECT_NE(choice.status().message(), "");
      continue;
    }
    EXPECT_EQ(run_and_check(spec), "");
  }
}

}  // namespace
}  // namespace longdecode::testing
