// Dense GQA decode: the sections of cases that users of such kernels reported. Every problem is
// poisoned (pages of nobody, page tails, table entries past the end, workspace, outputs).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr Method kDense = Method::kDense;

ProblemSpec small_spec(std::vector<int32_t> kv_lens) {
  return gqa_spec(kDense, DType::kBF16, 8, 2, 64, 16, std::move(kv_lens));
}

// The page-edge lengths of a page size.
std::vector<int32_t> edge_lengths(int32_t page_size) {
  return {1, std::max(1, page_size - 1), page_size, page_size + 1, std::max(1, 2 * page_size - 1)};
}

TEST(DenseOp, QuickCase01To03MemoryThatIsNotYours) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : kDTypes) {
    for (const int32_t page_size : {1, 16, 32, 64, 128}) {
      specs.push_back(gqa_spec(kDense, dtype, 8, 2, 64, page_size, {13, 200, 3 * page_size}));
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase04AppendingBehindASharedPrefixLeavesTheOtherSequenceAlone) {
  EXPECT_EQ(check_shared_prefix(small_spec({40, 47}), 51), "");
}

TEST(DenseOp, QuickCase05EmptySequences) {
  std::vector<ProblemSpec> specs = {small_spec({0, 100, 0, 33}), small_spec({0, 0, 0}),
                                    small_spec({0})};
  specs.push_back(small_spec({0, 37}));
  specs.back().query_len = 4;
  specs.push_back(small_spec({0, 20}));
  specs.back().desc.learned_sinks = true;
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase06PageEdges) {
  std::vector<ProblemSpec> specs;
  for (const int32_t page_size : {1, 16, 64, 128}) {
    for (const double deviation : {0.01, 1.0, 3.0}) {
      specs.push_back(gqa_spec(kDense, DType::kBF16, 4, 2, 64, page_size, edge_lengths(page_size)));
      specs.back().score_deviation = deviation;
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, Case06SplitEdgesAndOneLongSequenceAmongShortOnes) {
  std::vector<ProblemSpec> specs;
  std::vector<int32_t> lengths = {255, 256, 257, 511, 513, 1023, 1025, 2047, 2048, 2049};
  const ProblemSpec probe = small_spec({sized(16384, 4096)});
  const Result<KernelChoice> choice = select_kernel(resolved_desc(probe), cpu_device());
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  if (const auto split = static_cast<int32_t>(choice->tokens_per_split);
      split > 0 && split <= 4096) {
    for (const int32_t edge : {split - 1, split, split + 1, 2 * split - 1, 2 * split + 1}) {
      lengths.push_back(edge);
    }
  }
  for (const int32_t length : lengths) {
    specs.push_back(small_spec({length}));
    specs.push_back(gqa_spec(kDense, DType::kF32, 4, 1, 64, 64, {length, 5}));
  }
  specs.push_back(small_spec({sized(16384, 4096) + 11, 1, 5, 17, 33, 2, 90, 16}));
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase06IdenticalSequencesGiveIdenticalBits) {
  ProblemSpec spec = small_spec({300, 300, 300});
  spec.desc.batch_invariant = true;
  spec.edit = [](LogicalSequence& s, int32_t) {
    for (size_t i = 0; i < s.k.size(); ++i) s.k[i] = static_cast<float>(i % 13) * 0.1f;
    for (size_t i = 0; i < s.v.size(); ++i) s.v[i] = static_cast<float>(i % 29) * 0.1f;
    for (size_t i = 0; i < s.q.size(); ++i) s.q[i] = static_cast<float>(i % 7) * 0.2f;
  };
  const PagedProblem problem(spec);
  const Outputs outputs = run_plan(problem.desc(), problem.args());
  ASSERT_EQ(check(problem, outputs), "");
  const auto third = static_cast<std::ptrdiff_t>(outputs.o_bits.size() / 3);
  const auto begin = outputs.o_bits.begin();
  EXPECT_TRUE(std::equal(begin, begin + third, begin + third));
  EXPECT_TRUE(std::equal(begin, begin + third, begin + 2 * third));
}

TEST(DenseOp, QuickCase07QueriesThatSeeNothingOfASplitOrOfTheSequence) {
  std::vector<ProblemSpec> specs;
  for (const int32_t kv_len : {1, 3, 7, 8, 129, 257, 513}) {
    specs.push_back(small_spec({kv_len, 4}));
    specs.back().query_len = 8;
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, Case08OnePageMoreThanAMultipleOfTheSplits) {
  std::vector<ProblemSpec> specs;
  for (const int32_t pages : {3, 5, 9, 17, 33, 65}) {
    specs.push_back(small_spec({pages * 16}));
    specs.push_back(gqa_spec(kDense, DType::kF16, 2, 2, 64, 128, {pages * 128 / 4}));
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase09GroupSizes) {
  std::vector<ProblemSpec> specs;
  for (const int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    for (const DType dtype : kDTypes) {
      specs.push_back(gqa_spec(kDense, dtype, 2 * group, 2, 64, 16, {77, 130}));
    }
    specs.push_back(gqa_spec(kDense, DType::kBF16, 3 * group, 3, 128, 64, {200}));
    specs.back().query_len = 3;
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase10HeadDims) {
  std::vector<ProblemSpec> specs;
  for (const int32_t head_dim : {64, 80, 96, 128, 256}) {
    for (const DType dtype : kDTypes) {
      specs.push_back(gqa_spec(kDense, dtype, 8, 2, head_dim, 16, {100, 31}));
      specs.push_back(gqa_spec(kDense, dtype, 3, 1, head_dim, 64, {65}));
      specs.back().query_len = 2;
      // Q and O in another dtype than the cache.
      specs.push_back(gqa_spec(kDense, dtype, 4, 2, head_dim, 32, {64}));
      specs.back().desc.q_dtype = dtype == DType::kF32 ? DType::kBF16 : DType::kF32;
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase11PageOrders) {
  std::vector<ProblemSpec> specs;
  for (const PageOrder order :
       {PageOrder::kInOrder, PageOrder::kScattered, PageOrder::kDescending, PageOrder::kHighIds}) {
    for (const int32_t page_size : {1, 16, 32, 64, 128}) {
      specs.push_back(gqa_spec(kDense, DType::kBF16, 4, 2, 64, page_size, {150, 64}));
      specs.back().page_order = order;
    }
  }
  // Offsets beyond 2^32 elements: 70000 pages of 8 x 128 x 128.
  specs.push_back(gqa_spec(kDense, DType::kBF16, 8, 8, 128, 128, {300}));
  specs.back().page_order = PageOrder::kHighIds;
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase12SeveralQueryTokens) {
  std::vector<ProblemSpec> specs;
  for (const int32_t query_len : {1, 2, 3, 4, 8}) {
    for (const bool causal : {true, false}) {
      specs.push_back(small_spec({9, 64, 65, 130}));
      specs.back().query_len = query_len;
      specs.back().desc.causal = causal;
    }
  }
  specs.push_back(small_spec({50, 51, 52, 0, 90}));
  specs.back().query_len = 8;
  specs.back().query_lens = {8, 1, 3, 0, 5};
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase13StridedInputs) {
  std::vector<ProblemSpec> specs;
  for (const PoolLayout layout : {PoolLayout::kHnd, PoolLayout::kNhd, PoolLayout::kInterleaved}) {
    for (const DType dtype : kDTypes) {
      specs.push_back(gqa_spec(kDense, dtype, 6, 2, 80, 16, {100, 7}));
      specs.back().layout = layout;
      specs.back().strided_q = true;
      specs.back().query_len = 2;
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

// Scores around `level` whatever the query: the key gets a multiple of the query.
ProblemSpec scores_around(double level, double spread, DType dtype) {
  ProblemSpec spec = gqa_spec(kDense, dtype, 2, 2, 128, 16, {150});
  const double scale = resolved_scale(spec.desc);
  spec.edit = [=](LogicalSequence& s, int32_t) {
    for (int32_t j = 0; j < s.kv_len; ++j) {
      for (int32_t h = 0; h < 2; ++h) s.plant_score(j, h, level + spread * (j % 11 - 5), scale);
    }
  };
  spec.note = "scores around " + std::to_string(level);
  return spec;
}

TEST(DenseOp, QuickCase14HugeScores) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : kDTypes) {
    for (const double level : {1e5, -1e5, -5e4, -3e8, 0.0}) {
      for (const double spread : {0.01, 1.0, 1e4}) {
        if (dtype == DType::kF16 && std::abs(level) + 5 * spread > 3e5)
          continue;  // keys beyond fp16
        specs.push_back(scores_around(level, spread, dtype));
      }
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase15EqualKeysAndOneHugeKey) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : kDTypes) {
    specs.push_back(gqa_spec(kDense, dtype, 8, 2, 64, 16, {250}));
    specs.back().note = "all keys equal";
    specs.back().edit = [](LogicalSequence& s, int32_t) {
      std::fill(s.k.begin(), s.k.end(), 0.75f);
    };
    specs.push_back(gqa_spec(kDense, dtype, 8, 2, 64, 16, {250}));
    specs.back().note = "q = 0: all scores equal";
    specs.back().edit = [](LogicalSequence& s, int32_t) {
      std::fill(s.q.begin(), s.q.end(), 0.0f);
    };
    specs.push_back(gqa_spec(kDense, dtype, 8, 2, 64, 16, {250}));
    specs.back().note = "one key 1e4 times larger";
    specs.back().edit = [](LogicalSequence& s, int32_t) {
      for (int32_t h = 0; h < 2; ++h) {
        for (int32_t c = 0; c < 64; ++c) s.key(100, h)[c] *= 1e4f;
      }
    };
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase17And18KeyBiasAndOutlierChannels) {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : kDTypes) {
    for (const float bias : {50.0f, -200.0f}) {
      specs.push_back(gqa_spec(kDense, dtype, 8, 2, 128, 16, {250}));
      specs.back().note = "K bias";
      specs.back().edit = [=](LogicalSequence& s, int32_t) {
        for (float& x : s.k) x += bias;
      };
    }
    specs.push_back(gqa_spec(kDense, dtype, 8, 2, 128, 16, {250}));
    specs.back().note = "outlier channels";
    specs.back().edit = [](LogicalSequence& s, int32_t) {
      for (size_t i = 0; i < s.k.size(); i += 37) s.k[i] *= 100.0f;
    };
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase21NeedlesAtEveryPlace) {
  std::vector<ProblemSpec> specs;
  for (const int32_t kv_len : {16, 40, 300, 1030}) {
    for (const int32_t token : {0, kv_len / 2, kv_len / 16 * 16 - 1, kv_len - 1}) {
      specs.push_back(small_spec({kv_len}));
      specs.back().note = "needle at " + std::to_string(token);
      specs.back().edit = [=](LogicalSequence& s, int32_t) {
        s.plant_score(token, 3, 30.0, 1.0 / 8.0);
      };
    }
  }
  EXPECT_EQ(run_and_check(specs), "");
}

// The states of the last sequence's splits lie more than 2^31 floats into the workspace.
TEST(DenseOp, Case26PartialsBeyond31Bits) {
  std::vector<int32_t> kv_lens(16, 0);
  kv_lens.back() = 600;
  ProblemSpec spec = gqa_spec(kDense, DType::kBF16, 1024, 64, 256, 16, kv_lens);
  spec.desc.max_query_len = 8;
  spec.desc.max_kv_len = 64 * 1024;
  const PagedProblem problem(spec);
  RunOptions options;
  options.sparse_workspace = true;
  EXPECT_EQ(check(problem, run_plan(problem.desc(), problem.args(), options)), "");
}

TEST(DenseOp, QuickCase26UnitStridesAreIgnored) {
  std::vector<ProblemSpec> specs;
  for (const int32_t page_size : {1, 16}) {
    specs.push_back(gqa_spec(kDense, DType::kBF16, 1, 1, 64, page_size, {50}));
    specs.back().garbage_unit_strides = true;
  }
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(DenseOp, QuickCase27SoftCapWindowAndLearnedSinks) {
  std::vector<ProblemSpec> specs;
  for (const int32_t kv_len : {1, 30, 700, 2500}) {
    for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{600}}) {
      for (const float cap : {0.0f, 5.0f}) {
        for (const bool sinks : {false, true}) {
          ProblemSpec spec = small_spec({kv_len, 12});
          spec.score_deviation = 3.0;
          spec.query_len = window == 37 ? 3 : 1;
          spec.desc.sliding_window = window;
          spec.desc.soft_cap = cap;
          spec.desc.learned_sinks = sinks;
          specs.push_back(spec);
        }
      }
    }
  }
  // Sinks far above and far below every score.
  for (const float sink : {60.0f, -1e5f}) {
    specs.push_back(small_spec({1500}));
    specs.back().desc.learned_sinks = true;
    specs.back().sink_logits.assign(8, sink);
  }
  EXPECT_EQ(run_and_check(specs), "");
}

// Positions minus the window must not overflow, those before the first token included.
TEST(DenseOp, QuickAWindowBeyondAnyLengthHidesNothing) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    ProblemSpec spec = gqa_spec(method, DType::kBF16, 4, 2, 64, 64, {3, 40, 150});
    spec.query_len = 8;
    spec.desc.sliding_window = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(run_and_check(spec), "");
  }
}

}  // namespace
}  // namespace longdecode::testing
