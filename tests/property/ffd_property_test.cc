// What must hold for every FFD selection, whatever the input.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ref/decode.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

ProblemSpec ffd_spec(std::vector<int32_t> kv_lens, uint32_t seed = 1) {
  ProblemSpec spec = gqa_spec(Method::kFfd, DType::kF16, 8, 2, 64, 64, std::move(kv_lens));
  spec.desc.ffd.sink_tokens = 16;
  spec.desc.ffd.recent_tokens = 24;
  spec.score_deviation = 2.0;
  spec.seed = seed;
  return spec;
}

Outputs run(const PagedProblem& problem) { return run_plan(problem.desc(), problem.args()); }

double kept_fraction(const Outputs& outputs, int32_t kv_len) {
  double sum = 0.0;
  for (const int64_t attended : outputs.tokens_attended) sum += static_cast<double>(attended);
  return sum / static_cast<double>(outputs.tokens_attended.size()) / kv_len;
}

// The same keys as FFD stores them, in a plain fp32 cache, with dense attention.
ProblemSpec dense_over_stored_keys(const PagedProblem& problem) {
  ProblemSpec spec = problem.spec();
  spec.desc.method = Method::kDense;
  spec.desc.format.keys = KeyEncoding::kPlain;
  spec.desc.format.dtype = DType::kF32;
  spec.edit = [&problem](LogicalSequence& s, int32_t b) {
    const ref::PagedSource kv(problem.args().kv, problem.args().batch, b);
    std::vector<double> row(static_cast<size_t>(s.key_dim));
    for (int32_t j = 0; j < s.kv_len; ++j) {
      for (int32_t h = 0; h < s.num_kv_heads; ++h) {
        kv.key(h, j, row.data());
        std::transform(row.begin(), row.end(), s.key(j, h),
                       [](double x) { return static_cast<float>(x); });
        kv.value(h, j, row.data());
        std::transform(row.begin(), row.end(), s.value(j, h),
                       [](double x) { return static_cast<float>(x); });
      }
    }
  };
  return spec;
}

TEST(FfdProperty, QuickInfiniteDeltaIsDenseOverTheStoredKeys) {
  for (const int32_t query_len : {1, 3}) {
    ProblemSpec spec = ffd_spec({900, 71, 200});
    spec.desc.q_dtype = DType::kF32;
    spec.desc.ffd.delta = kInfinity;
    spec.query_len = query_len;
    const PagedProblem ffd(spec);
    const Outputs a = run(ffd);
    ASSERT_EQ(check(ffd, a), "");
    const PagedProblem dense(dense_over_stored_keys(ffd));
    const Outputs b = run(dense);
    ASSERT_EQ(check(dense, b), "");
    for (size_t i = 0; i < a.o.size(); ++i) EXPECT_NEAR(a.o[i], b.o[i], 1e-5) << i;
    for (size_t i = 0; i < a.lse.size(); ++i) EXPECT_NEAR(a.lse[i], b.lse[i], 1e-5) << i;
    // And so is dense attention over the two-plane cache itself.
    spec.desc.method = Method::kDense;
    const PagedProblem direct(spec);
    EXPECT_EQ(check(direct, run(direct)), "");
  }
}

// |softmax over quantised keys - softmax over the original ones|: every score is within
// E = softmax_scale sum_c |q_c| d_c / 512 of the original one, so o moves by at most
// (e^2E - 1) sum_j p_j |v_j| <= (e^2E - 1) max |v|.
TEST(FfdProperty, QuickFormatErrorAgainstTheOriginalKeys) {
  for (const double deviation : {0.01, 1.0, 3.0}) {
    ProblemSpec spec = ffd_spec({1000});
    spec.desc.q_dtype = DType::kF32;
    spec.desc.ffd.delta = kInfinity;
    spec.score_deviation = deviation;
    PagedProblem problem(spec);
    const Outputs outputs = run(problem);
    ASSERT_EQ(check(problem, outputs), "");
    LogicalSequence& s = problem.sequence(0);
    const ref::ArraySource original(s.k.data(), s.v.data(), s.kv_len, 2, 64, 64);
    const ref::AttentionOutput expected =
        ref::decode_dense(problem.desc(), problem.args(), 0, original);
    const ref::PagedSource kv(problem.args().kv, problem.args().batch, 0);
    std::vector<double> steps(64);
    for (int32_t i = 0; i < 8; ++i) {
      double error = 0.0;
      for (int64_t j = 0; j < kv.num_quantized_tokens(); j += 64) {
        kv.steps(i / 4, j, steps.data());
        double sum = 0.0;
        for (size_t c = 0; c < 64; ++c) sum += std::abs(double{s.query(0, i)[c]}) * steps[c] / 512;
        error = std::max(error, sum / 8.0);
      }
      const double limit = std::expm1(2 * error) * 3.5 + 1e-5;
      EXPECT_LT(error, 0.1);
      for (size_t c = 0; c < 64; ++c) {
        const size_t at = static_cast<size_t>(i) * 64 + c;
        EXPECT_NEAR(outputs.o[at], expected.o[at], limit);
      }
    }
  }
}

TEST(FfdProperty, QuickALargerDeltaKeepsASuperset) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    std::vector<ref::TileSet> previous;
    double kept_before = 0.0;
    for (const float delta : {0.0f, 1.0f, 3.0f, 5.0f, 7.0f, 12.0f, kInfinity}) {
      ProblemSpec spec = ffd_spec({1600}, seed);
      spec.desc.ffd.delta = delta;
      const PagedProblem problem(spec);
      const Outputs outputs = run(problem);
      ASSERT_TRUE(outputs.status.ok()) << outputs.status.message();
      if (!previous.empty()) {
        EXPECT_TRUE(previous[0].is_subset_of(outputs.tiles[0])) << repro(spec);
      }
      previous = outputs.tiles;
      const double kept = kept_fraction(outputs, 1600);
      EXPECT_GE(kept, kept_before);
      kept_before = kept;
    }
    EXPECT_EQ(kept_before, 1.0);
  }
}

TEST(FfdProperty, QuickAMarginKeepsASuperset) {
  ref::TileSet previous;
  for (const float sigmas : {0.0f, 0.5f, 1.0f, 2.0f, 4.0f}) {
    ProblemSpec spec = ffd_spec({1600});
    spec.desc.ffd.delta = 1.0f;
    spec.desc.ffd.margin_sigmas = sigmas;
    const PagedProblem problem(spec);
    const Outputs outputs = run(problem);
    ASSERT_EQ(check(problem, outputs), "");
    if (sigmas > 0.0f) {
      EXPECT_TRUE(previous.is_subset_of(outputs.tiles[0])) << repro(spec);
    }
    previous = outputs.tiles[0];
  }
}

TEST(FfdProperty, QuickKeptFractionRisesWithTheEntropyOfTheScores) {
  const int32_t kv_len = sized(4000, 2000);
  double previous = 2.0;
  for (const double deviation : {0.3, 1.5, 3.0, 6.0}) {
    ProblemSpec spec = gqa_spec(Method::kFfd, DType::kBF16, 2, 2, 128, 64, {kv_len});
    spec.desc.ffd.delta = 3.0f;
    spec.score_deviation = deviation;
    const PagedProblem problem(spec);
    const Outputs outputs = run(problem);
    ASSERT_EQ(check(problem, outputs), "");
    const double kept = kept_fraction(outputs, kv_len);
    EXPECT_LE(kept, previous) << deviation;
    previous = kept;
  }
  EXPECT_LT(previous, 0.5);
}

// Keys that are as far from their 2-bit value as can be, in the direction that hides them: every
// channel of the planted token lies at the upper end of its code where q is positive, at the lower
// end where it is negative.
ProblemSpec adversarial_spec(uint32_t seed, double nats_above) {
  ProblemSpec spec = gqa_spec(Method::kFfd, DType::kF32, 1, 1, 64, 64, {1000});
  spec.seed = seed;
  spec.desc.ffd.sink_tokens = 16;
  spec.desc.ffd.recent_tokens = 24;
  spec.desc.ffd.delta = 4.0f;
  spec.note = "adversarial, " + std::to_string(nats_above) + " nats above the threshold";
  spec.edit = [=](LogicalSequence& s, int32_t) {
    // Each page has keys at +-2 (the grid: step 1, codes end at -1, 0 and 1) and tokens in between.
    for (int32_t j = 0; j < s.kv_len; ++j) {
      for (int32_t c = 0; c < 64; ++c) {
        if (j % 64 < 2) s.key(j, 0)[c] = j % 2 == 0 ? -2.0f : 2.0f;
        if (j % 64 >= 2) s.key(j, 0)[c] = 0.03f * s.key(j, 0)[c];
      }
    }
    for (int32_t j = 70; j < 900; j += 41) {
      if (j % 64 < 2) continue;
      for (int32_t c = 0; c < 64; ++c) {
        const float sign = s.query(0, 0)[c] > 0.0f ? 1.0f : -1.0f;
        s.key(j, 0)[c] = sign * 0.999f;
      }
    }
    // The always attended tokens score so that the planted ones are just above the threshold.
    double planted = 0.0;
    for (int32_t c = 0; c < 64; ++c) planted += 0.999 * std::abs(double{s.query(0, 0)[c]}) / 8.0;
    for (int32_t j = 0; j < s.kv_len; ++j) {
      if (j >= 2 && j < 16) s.plant_score(j, 0, planted + 4.0 - nats_above, 1.0 / 8.0);
    }
  };
  return spec;
}

TEST(FfdProperty, QuickCertifiedNeverMisses) {
  int64_t missed_without = 0;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    for (const double nats_above : {0.001, 0.05, 0.5}) {
      ProblemSpec spec = adversarial_spec(seed, nats_above);
      const PagedProblem plain(spec);
      const Outputs without = run(plain);
      ASSERT_EQ(check(plain, without), "");
      const ref::PagedSource kv(plain.args().kv, plain.args().batch, 0);
      missed_without +=
          ref::count_missed_exact(ref::make_problem(plain.desc(), plain.args(), 0, kv), kv,
                                  plain.desc().ffd, without.tiles[0]);
      spec.desc.ffd.certified = true;
      const PagedProblem certified(spec);
      EXPECT_EQ(check(certified, run(certified)), "");
    }
    for (const double deviation : {0.5, 2.0, 6.0}) {
      ProblemSpec spec = ffd_spec({1500, 200}, seed);
      spec.score_deviation = deviation;
      spec.desc.ffd.delta = 1.0f;
      spec.desc.ffd.certified = true;
      spec.query_len = seed % 2 == 0 ? 2 : 1;
      const PagedProblem problem(spec);
      EXPECT_EQ(check(problem, run(problem)), "");
    }
  }
  EXPECT_GT(missed_without, 0) << "the adversarial keys fool nobody";
}

// Worst-case margins of about 2 nats, a threshold 6 nats above every other score: what is certified
// must hold everything that exact selection keeps, and still drop nearly everything.
TEST(FfdProperty, QuickCertifiedKeepsNoMoreThanItMust) {
  constexpr int32_t kKvLen = 3000;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    ProblemSpec spec = gqa_spec(Method::kFfd, DType::kF16, 2, 2, 64, 64, {kKvLen});
    spec.seed = seed;
    spec.desc.ffd.sink_tokens = 16;
    spec.desc.ffd.recent_tokens = 24;
    spec.desc.ffd.delta = 4.0f;
    spec.desc.ffd.certified = true;
    spec.score_deviation = 0.4;
    spec.note = "sinks of 12 nats, hits of 9 and 10";
    spec.edit = [](LogicalSequence& s, int32_t) {
      for (int32_t h = 0; h < 2; ++h) {
        for (int32_t j = 0; j < 16; ++j) s.plant_score(j, h, 12.0, 1.0 / 8.0);
        for (const int32_t j : {700, 1501}) s.plant_score(j, h, 9.0 + h, 1.0 / 8.0);
      }
    };
    const PagedProblem problem(spec);
    const Outputs outputs = run(problem);
    ASSERT_EQ(check(problem, outputs), "");
    const ref::PagedSource kv(problem.args().kv, problem.args().batch, 0);
    const auto ref_problem = ref::make_problem(problem.desc(), problem.args(), 0, kv);
    FfdOptions exact = problem.desc().ffd;
    EXPECT_EQ(ref::count_missed_exact(ref_problem, kv, exact, outputs.tiles[0]), 0);
    const double kept = kept_fraction(outputs, kKvLen);
    EXPECT_GT(kept, (16.0 + 24.0 + 2 * 16.0) / kKvLen);
    EXPECT_LT(kept, 0.15) << "page 0, the pages of the hits, the recent and unquantised tokens";
    const ref::AttentionOutput all = ref::attend(ref_problem);
    for (size_t i = 0; i < all.lse.size(); ++i) {
      const double dropped = std::expm1(all.lse[i] - outputs.lse[i]);
      EXPECT_LE(dropped, outputs.dropped_mass_bound[i] + 1e-6) << i;
      EXPECT_GT(outputs.dropped_mass_bound[i], 0.0f) << i;
      EXPECT_LT(outputs.dropped_mass_bound[i], 10.0f) << "as good as no bound";
    }
  }
}

TEST(FfdProperty, QuickTheDroppedMassBoundIsRigorousWhenCertified) {
  for (const double deviation : {1.0, 3.0, 6.0}) {
    for (const float delta : {0.0f, 2.0f, 5.0f}) {
      ProblemSpec spec = ffd_spec({1500});
      spec.score_deviation = deviation;
      spec.desc.ffd.delta = delta;
      spec.desc.ffd.certified = true;
      const PagedProblem problem(spec);
      const Outputs outputs = run(problem);
      ASSERT_EQ(check(problem, outputs), "");
      const ref::PagedSource kv(problem.args().kv, problem.args().batch, 0);
      const ref::AttentionOutput all =
          ref::attend(ref::make_problem(problem.desc(), problem.args(), 0, kv));
      for (size_t i = 0; i < all.lse.size(); ++i) {
        // Weight of the dropped tokens relative to the kept ones.
        const double dropped = std::expm1(all.lse[i] - outputs.lse[i]);
        EXPECT_LE(dropped, outputs.dropped_mass_bound[i] + 1e-5) << i;
      }
    }
  }
}

TEST(FfdProperty, QuickStatisticsAreConsistent) {
  const ProblemSpec spec = ffd_spec({1500, 60, 0, 300});
  const PagedProblem problem(spec);
  const Outputs outputs = run(problem);
  ASSERT_EQ(check(problem, outputs), "");
  const KvFormat& f = problem.desc().format;
  for (size_t b = 0; b < spec.kv_lens.size(); ++b) {
    const int64_t kv_len = spec.kv_lens[b];
    const int64_t quantized = f.num_quantized_pages(kv_len) * f.page_size;
    for (size_t h = 0; h < 2; ++h) {
      const size_t at = b * 2 + h;
      EXPECT_GE(outputs.tokens_scanned[at], 0);
      EXPECT_LE(outputs.tokens_scanned[at], quantized);
      EXPECT_LE(outputs.tokens_attended[at], kv_len);
      EXPECT_GE(outputs.tokens_scanned[at] + outputs.tokens_attended[at], kv_len);
      // At least V of what is attended and the codes of what is scanned, at most everything.
      EXPECT_GE(outputs.bytes_read[at], outputs.tokens_attended[at] * f.value_dim * 2 +
                                            outputs.tokens_scanned[at] * f.key_dim / 4);
      EXPECT_LE(outputs.bytes_read[at],
                kv_len * f.value_dim * 2 + (kv_len - quantized) * f.key_dim * 2 +
                    f.num_quantized_pages(kv_len) * (f.chunk_bytes() + f.residual_bytes()));
    }
  }
}

}  // namespace
}  // namespace longdecode::testing
