// What must not change the bits of a result on the CPU: the order of a batch and its neighbours,
// the number of threads, repetition, earlier runs of a plan, and how the pages lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "ref/attention.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

ProblemSpec dense_spec(std::vector<int32_t> kv_lens) {
  return gqa_spec(Method::kDense, DType::kBF16, 8, 2, 64, 16, std::move(kv_lens));
}

ProblemSpec ffd_spec(std::vector<int32_t> kv_lens) {
  ProblemSpec spec = gqa_spec(Method::kFfd, DType::kBF16, 8, 2, 64, 64, std::move(kv_lens));
  spec.desc.ffd.sink_tokens = 16;
  spec.desc.ffd.recent_tokens = 24;
  spec.desc.ffd.delta = 2.0f;
  spec.score_deviation = 2.0;
  return spec;
}

// One spec per operation, in batch-invariant mode.
std::vector<ProblemSpec> invariant_specs(const std::vector<int32_t>& kv_lens) {
  std::vector<ProblemSpec> specs = {dense_spec(kv_lens), ffd_spec(kv_lens),
                                    mla_spec(DType::kBF16, 5, 64, kv_lens)};
  for (ProblemSpec& spec : specs) {
    spec.desc.batch_invariant = true;
    spec.desc.max_batch = 8;
    spec.desc.max_kv_len = 2500;
  }
  return specs;
}

Outputs run(const ProblemSpec& spec, const RunOptions& options = {}) {
  const PagedProblem problem(spec);
  return run_plan(problem.desc(), problem.args(), options);
}

TEST(Invariance, QuickBatchOrderAndNeighbours) {
  const std::vector<int32_t> lengths = {700, 0, 33, sized(2300, 900), 129};
  const std::vector<int32_t> order = {3, 1, 4, 0, 2};
  for (ProblemSpec spec : invariant_specs(lengths)) {
    spec.query_len = 2;
    const Outputs all = run(spec);
    ProblemSpec permuted = spec;
    permuted.stream_ids = order;
    for (size_t i = 0; i < order.size(); ++i) {
      permuted.kv_lens[i] = lengths[static_cast<size_t>(order[i])];
    }
    const Outputs shuffled = run(permuted);
    for (int32_t i = 0; i < 5; ++i) {
      EXPECT_EQ(same_bits(all, order[static_cast<size_t>(i)], shuffled, i), "") << repro(spec);
      ProblemSpec alone = spec;
      alone.stream_ids = {i};
      alone.kv_lens = {lengths[static_cast<size_t>(i)]};
      EXPECT_EQ(same_bits(all, i, run(alone), 0), "") << repro(alone);
    }
  }
}

TEST(Invariance, QuickNumberOfThreads) {
  for (ProblemSpec spec : invariant_specs({sized(2500, 900), 100, 640})) {
    for (const bool invariant : {false, true}) {
      spec.desc.batch_invariant = invariant;
      RunOptions options;
      options.num_threads = 1;
      const Outputs one = run(spec, options);
      for (const int32_t num_threads : {2, 5}) {
        options.num_threads = num_threads;
        EXPECT_EQ(same_bits(one, run(spec, options)), "") << num_threads << " " << repro(spec);
      }
    }
  }
}

TEST(Invariance, QuickCase25Repetition) {
  for (const ProblemSpec& spec : invariant_specs({1500, 70, 0})) {
    const Outputs once = run(spec);
    RunOptions thrice;
    thrice.num_runs = 3;
    EXPECT_EQ(same_bits(once, run(spec, thrice)), "") << repro(spec);
    EXPECT_EQ(same_bits(once, run(spec)), "") << repro(spec);
  }
}

TEST(Invariance, QuickPageOrderAndLayout) {
  for (const ProblemSpec& spec : invariant_specs({450, 17})) {
    ProblemSpec contiguous = spec;
    contiguous.page_order = PageOrder::kInOrder;
    const Outputs expected = run(contiguous);
    for (const PageOrder order :
         {PageOrder::kScattered, PageOrder::kDescending, PageOrder::kHighIds}) {
      for (const PoolLayout layout : {PoolLayout::kHnd, PoolLayout::kNhd}) {
        ProblemSpec other = spec;
        other.page_order = order;
        other.layout = layout;
        other.strided_q = layout == PoolLayout::kNhd;
        EXPECT_EQ(same_bits(expected, run(other)), "") << repro(other);
      }
    }
  }
}

// As a captured graph: lengths, tables and padding change between runs of one plan.
TEST(Invariance, QuickCase23OneWorkspaceServesChangingLengths) {
  for (const ProblemSpec& spec : invariant_specs({900, 300})) {
    const std::vector<std::vector<int32_t>> steps = {{900, 300}, {64, 1},   {0, 0},
                                                     {2400, 0},  {3, 1200}, {900, 300}};
    const PagedProblem first(spec);
    Result<DecodePlan> plan = DecodePlan::create(first.desc(), cpu_device());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    GuardedBuffer workspace(plan->workspace_bytes());
    ASSERT_TRUE(plan->init(workspace.data(), nullptr).ok());
    for (const std::vector<int32_t>& lengths : steps) {
      ProblemSpec step = spec;
      step.kv_lens = lengths;
      const PagedProblem problem(step);
      DecodeArgs args = problem.args();
      GuardedBuffer o(2 * 8 * 512 * 2);
      GuardedBuffer lse(2 * 8 * 4);
      args.o = TensorView::contiguous(o.data(), DType::kBF16,
                                      {2, 1, step.desc.num_q_heads, step.desc.format.value_dim});
      args.lse = lse.data<float>();
      ASSERT_TRUE(plan->run(args, nullptr).ok());
      const Outputs fresh = run(step);
      ASSERT_TRUE(fresh.status.ok());
      EXPECT_TRUE(std::equal(fresh.o_bits.begin(), fresh.o_bits.end(), o.data<uint16_t>()))
          << repro(step);
      EXPECT_TRUE(std::equal(fresh.lse.begin(), fresh.lse.end(), lse.data<float>()));
    }
    EXPECT_TRUE(workspace.canaries_intact());
  }
}

TEST(Invariance, QuickCase24TwoPlansAtOnce) {
  const std::vector<ProblemSpec> specs = invariant_specs({1100, 65, 300});
  std::vector<Outputs> alone;
  for (const ProblemSpec& spec : specs) alone.push_back(run(spec));
  for (int32_t repetition = 0; repetition < sized(5, 2); ++repetition) {
    std::vector<Outputs> together(specs.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < specs.size(); ++i) {
      threads.emplace_back([&, i] { together[i] = run(specs[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(same_bits(alone[i], together[i]), "") << repro(specs[i]);
    }
  }
}

// Sequences 1 and 2 hold the two halves of sequence 0.
ProblemSpec halves_spec(int32_t kv_len, int32_t cut) {
  ProblemSpec spec =
      gqa_spec(Method::kDense, DType::kF32, 6, 2, 64, 16, {kv_len, cut, kv_len - cut});
  spec.edit = [=](LogicalSequence& s, int32_t stream) {
    const int32_t begin = stream == 2 ? cut : 0;
    for (int32_t j = 0; j < s.kv_len; ++j) {
      for (int32_t h = 0; h < 2; ++h) {
        for (int32_t c = 0; c < 64; ++c) {
          s.key(j, h)[c] = std::sin(0.37f * static_cast<float>((begin + j) * (c + 1) + 11 * h));
          s.value(j, h)[c] = std::cos(0.11f * static_cast<float>((begin + j) * (c + 3) + 5 * h));
        }
      }
    }
    for (size_t i = 0; i < s.q.size(); ++i) s.q[i] = std::sin(static_cast<float>(i));
  };
  return spec;
}

TEST(Merge, QuickCase16HalvesByTheirLse) {
  for (const int32_t cut : {0, 1, 300, 599, 600}) {
    const ProblemSpec spec = halves_spec(600, cut);
    const Outputs outputs = run(spec);
    ASSERT_TRUE(outputs.status.ok()) << outputs.status.message();
    const size_t rows = 6;
    const size_t dim = 64;
    std::vector<float> partial_o(2 * rows * dim);
    std::vector<float> partial_lse(2 * rows);
    for (size_t i = 0; i < 2 * rows; ++i) {
      partial_lse[i] = static_cast<float>(outputs.lse[rows + i]);
      for (size_t c = 0; c < dim; ++c) {
        // The o of an empty partial is not read.
        partial_o[i * dim + c] = std::isinf(partial_lse[i])
                                     ? std::nanf("")
                                     : static_cast<float>(outputs.o[(rows + i) * dim + c]);
      }
    }
    GuardedBuffer o(static_cast<int64_t>(rows * dim * 4));
    GuardedBuffer lse(static_cast<int64_t>(rows * 4));
    const MergeArgs args{
        2, 6, 64, partial_o.data(), partial_lse.data(), o.data<float>(), lse.data<float>()};
    ASSERT_TRUE(merge_partials(args, cpu_device(), nullptr).ok());
    for (size_t i = 0; i < rows * dim; ++i) {
      EXPECT_NEAR(double{o.data<float>()[i]}, outputs.o[i], 4e-6) << cut << " " << i;
    }
    for (size_t i = 0; i < rows; ++i) {
      EXPECT_NEAR(double{lse.data<float>()[i]}, outputs.lse[i], 4e-6) << cut << " " << i;
    }
    EXPECT_TRUE(o.canaries_intact() && lse.canaries_intact());
  }
}

TEST(Merge, QuickAllEmptyAndManyPartials) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> partial_o(7 * 3 * 20, std::nanf(""));
  std::vector<float> partial_lse(7 * 3, -infinity);
  std::vector<ref::AttentionOutput> partials(7);
  for (size_t p = 0; p < 7; ++p) {
    partials[p].o.resize(3 * 20);
    partials[p].lse.assign(3, -double{infinity});
    for (size_t r = 0; r < 2; ++r) {  // row 2 stays empty in every partial
      if (p == 3) continue;
      partial_lse[p * 3 + r] = static_cast<float>(p * 37 % 11) * (r == 0 ? 1.0f : 3e3f);
      partials[p].lse[r] = double{partial_lse[p * 3 + r]};
      for (size_t c = 0; c < 20; ++c) {
        partial_o[(p * 3 + r) * 20 + c] = std::sin(static_cast<float>(p + r * 100 + c * 7));
        partials[p].o[r * 20 + c] = double{partial_o[(p * 3 + r) * 20 + c]};
      }
    }
  }
  std::vector<float> o(3 * 20, std::nanf(""));
  std::vector<float> lse(3, std::nanf(""));
  const MergeArgs args{7, 3, 20, partial_o.data(), partial_lse.data(), o.data(), lse.data()};
  ASSERT_TRUE(merge_partials(args, cpu_device(), nullptr).ok());
  const ref::AttentionOutput expected = ref::merge(partials, 20);
  for (size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(double{o[i]}, expected.o[i], 1e-6) << i;
  EXPECT_NEAR(double{lse[0]}, expected.lse[0], 1e-5);
  EXPECT_NEAR(double{lse[1]}, expected.lse[1], 1e-2);
  EXPECT_EQ(lse[2], -infinity);
}

}  // namespace
}  // namespace longdecode::testing
