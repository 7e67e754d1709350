// The key format study's evaluator: its grids, its measures, and the product beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "benchmarks/study/head_study.h"
#include "benchmarks/study/scan.h"
#include "benchmarks/study/study.h"
#include "longdecode/kv_cache.h"
#include "tests/support/safetensors.h"

namespace longdecode::study {
namespace {

constexpr int32_t kDim = 64;

// [dim, page_size] of one page of kv head 0.
std::vector<float> page_of(const LayerSample& sample, int32_t page_size) {
  std::vector<float> keys(size_t(kDim) * size_t(page_size));
  for (int32_t c = 0; c < kDim; ++c) {
    for (int32_t t = 0; t < page_size; ++t) {
      const float key = sample.k[size_t(t * sample.num_kv_heads * kDim + c)];
      keys[size_t(c * page_size + t)] = f16_to_f32(f32_to_f16(key));
    }
  }
  return keys;
}

constexpr std::array<SyntheticKeys, 3> kKinds = {SyntheticKeys::kGaussian, SyntheticKeys::kBias,
                                                 SyntheticKeys::kOutlierChannels};

TEST(StudyGrids, TheFirstVariantIsWhatTheProductStores) {
  for (const SyntheticKeys kind : kKinds) {
    for (const int32_t page_size : kPageSizes) {
      const LayerSample sample = make_synthetic(kind, page_size + 8, 1, 7);
      const std::vector<float> keys = page_of(sample, page_size);
      std::vector<float> rows;
      for (int32_t t = 0; t < page_size + 8; ++t) {
        const float* row = sample.k.data() + size_t(t * sample.num_kv_heads * kDim);
        rows.insert(rows.end(), row, row + kDim);
      }
      const auto stored = quantize_by_product(rows, kDim, page_size);
      ASSERT_TRUE(stored.ok()) << stored.status().message();
      ASSERT_EQ(stored->size(), 1u);
      const PageGrid own = quantize_page(grid_variants()[0], keys.data(), kDim, page_size);
      EXPECT_EQ(own.step, (*stored)[0].step);
      EXPECT_EQ(own.zero, (*stored)[0].zero);
      int32_t different = 0;  // keys on an edge of a code, where fp32 and fp64 may differ
      for (size_t i = 0; i < own.codes.size(); ++i) {
        different += own.codes[i] != (*stored)[0].codes[i] ? 1 : 0;
        EXPECT_NEAR(own.exact[i], (*stored)[0].exact[i], own.step[i / size_t(page_size)] / 200);
      }
      EXPECT_LE(different, 4) << sample.source;
    }
  }
}

TEST(StudyGrids, ReachEveryKeyOfThePage) {
  for (const SyntheticKeys kind : kKinds) {
    const std::vector<float> keys = page_of(make_synthetic(kind, 128, 1, 7), 128);
    for (const GridVariant& variant : grid_variants()) {
      const PageGrid page = quantize_page(variant, keys.data(), kDim, 128);
      for (size_t i = 0; i < keys.size(); ++i) {
        const size_t c = i / 128;
        const double error = page.zero[c] + page.exact[i] - keys[i];
        ASSERT_LE(std::abs(error), variant.residual_span * page.step[c] / 512 * 1.001)
            << variant.name;
      }
    }
  }
}

TEST(StudyGrids, AStepOfOneDeviationHasLessNoiseThanTheRangeOfGaussianKeys) {
  const std::vector<float> keys = page_of(make_synthetic(SyntheticKeys::kGaussian, 128, 1, 7), 128);
  const auto noise = [&](const GridVariant& variant) {
    const PageGrid page = quantize_page(variant, keys.data(), kDim, 128);
    double sum = 0.0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t c = i / 128;
      sum += std::pow(page.zero[c] + page.step[c] * page.codes[i] - keys[i], 2);
    }
    return std::sqrt(sum / double(keys.size()));
  };
  for (const GridVariant& variant : grid_variants()) {
    const double expected = variant.step == StepRule::kRange ? 0.39 : 0.35;
    EXPECT_NEAR(noise(variant), expected, 0.04) << variant.name;
  }
}

// Two tiles, no sink or recent token in the first; one row.
TEST(StudySelection, CountsWhatARuleDrops) {
  GroupQuery query;
  query.kv_len = 32;
  query.num_quantized = 0;
  query.head_dim = 1;
  query.page_size = 64;
  query.forced = {0, 1};
  RowScores row;
  row.max = {-4.0, -INFINITY};
  row.weight = {1.0, 3.0};
  row.weighted_v = {2.0f, 3.0f};
  row.pseudo_max = 0.0;
  row.sum_tiles(1);
  query.exact = {row};
  query.stored = {row};
  query.scan_max = {{-6.0, -INFINITY}};
  query.scan_sigma = {{4.0}};
  SelectionSums dropped;
  measure_selection(query, {16, 0.0, 5.0}, &dropped);
  EXPECT_EQ(dropped.kept, 0.5);
  EXPECT_EQ(dropped.exact_kept, 1.0);
  EXPECT_EQ(dropped.agreement, 0.0);
  EXPECT_EQ(dropped.wrongly_dropped, 1.0);
  EXPECT_EQ(dropped.dropped_mass, 0.25);
  EXPECT_EQ(dropped.exact_dropped_mass, 0.0);
  EXPECT_NEAR(dropped.output_error, 0.2, 1e-6);  // 3 / 3 beside 5 / 4
  for (const SelectionRule& rule :
       {SelectionRule{16, 0.5, 5.0}, SelectionRule{16, 0.0, 7.0}, SelectionRule{32, 0.0, 5.0}}) {
    SelectionSums kept;
    measure_selection(query, rule, &kept);
    EXPECT_EQ(kept.kept, 1.0);
    EXPECT_EQ(kept.agreement, 1.0);
    EXPECT_EQ(kept.dropped_mass, 0.0);
    EXPECT_NEAR(kept.output_error, 0.0, 1e-6);
  }
}

LayerSample real_sample(int64_t num_positions) {
  const auto dump = tests::load_safetensors("tests/data/smollm2_qkv.safetensors");
  LayerSample sample;
  sample.source = "dump";
  sample.layer_idx = 17;
  sample.num_kv_heads = 3;
  sample.group = 3;
  sample.k = dump.at("layers.17.k").values;
  sample.v = dump.at("layers.17.v").values;
  sample.positions = sample_positions(sample.num_tokens(), num_positions, 3);
  const auto& q = dump.at("layers.17.q").values;
  for (const int64_t position : sample.positions) {
    const auto first = q.begin() + position * 9 * kDim;
    sample.q.insert(sample.q.end(), first, first + 9 * kDim);
  }
  return sample;
}

// kept_fraction of the product's kernel for one query of the sample, mean over kv heads.
double product_kept(const LayerSample& sample, size_t position_idx) {
  const int64_t kv_len = sample.positions[position_idx] + 1;
  DeviceInfo device;
  KvCacheDesc desc;
  desc.format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 3, kDim, 128);
  desc.num_layers = 1;
  desc.num_pages = 8;
  desc.max_sequences = 1;
  desc.max_kv_len = 1024;
  auto cache = KvCache::create(desc, device);
  const std::array<SequenceId, 1> sequence = {*cache->add_sequence()};
  std::vector<float> k = sample.k;
  std::vector<float> v = sample.v;
  const auto append = [&](int64_t first, int64_t count) {
    const auto view = [&](std::vector<float>& from) {
      return TensorView::contiguous(from.data() + first * 3 * kDim, DType::kF32,
                                    {1, count, 3, kDim});
    };
    const std::array<int32_t, 1> new_tokens = {static_cast<int32_t>(count)};
    EXPECT_TRUE(cache->reserve(sequence, new_tokens).ok());
    EXPECT_TRUE(cache->append(0, view(k), view(v), nullptr).ok());
  };
  append(0, kv_len - 1);
  EXPECT_TRUE(cache->commit().ok());
  append(kv_len - 1, 1);
  DecodeDesc decode;
  decode.method = Method::kFfd;
  decode.format = desc.format;
  decode.q_dtype = DType::kF32;
  decode.num_q_heads = 9;
  decode.max_kv_len = 1024;
  auto plan = DecodePlan::create(decode, device);
  EXPECT_TRUE(plan.ok());
  std::vector<uint64_t> workspace(size_t(plan->workspace_bytes()) / 8 + 1);
  EXPECT_TRUE(plan->init(workspace.data(), nullptr).ok());
  std::vector<float> q(sample.q.begin() + int64_t(position_idx) * 9 * kDim,
                       sample.q.begin() + int64_t(position_idx + 1) * 9 * kDim);
  std::vector<float> o(q.size());
  std::array<int64_t, 3> attended = {};
  DecodeArgs args;
  args.q = TensorView::contiguous(q.data(), DType::kF32, {1, 1, 9, kDim});
  args.o = TensorView::contiguous(o.data(), DType::kF32, {1, 1, 9, kDim});
  args.kv = cache->layer(0);
  args.batch = cache->step();
  args.stats.tokens_attended = attended.data();
  EXPECT_TRUE(plan->run(args, nullptr).ok());
  return double(std::accumulate(attended.begin(), attended.end(), int64_t{0})) / double(3 * kv_len);
}

TEST(Study, KeepsWhatTheProductsKernelKeeps) {
  const LayerSample sample = real_sample(4);
  const auto result = run_study({sample}, 1, 1, nullptr);
  ASSERT_TRUE(result.ok());
  double expected = 0.0;
  for (size_t i = 0; i < sample.positions.size(); ++i) expected += product_kept(sample, i) / 4;
  const std::vector<SelectionRule> rules = selection_rules();
  const FfdOptions options;  // as product_kept() runs
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const SelectionRule& r) {
    return r.tile == kTileTokens && r.margin_sigmas == options.margin_sigmas &&
           r.delta == options.delta;
  });
  ASSERT_NE(rule, rules.end());
  // Variant 1 (the product's query of 8 bits), page 128.
  const SelectionSums& sums = (*result)[0].sums.selections[3][size_t(rule - rules.begin())];
  EXPECT_LT(expected, 0.9);
  EXPECT_NEAR(sums.kept / sums.queries, expected, 0.002);  // a tile on the edge of the threshold
}

TEST(Study, DoesNotDependOnThreadsAndRanksRules) {
  const LayerSample sample = real_sample(2);
  const auto one = run_study({sample}, 1, 1, nullptr);
  int64_t calls = 0;
  const auto two = run_study({sample}, 1, 2, [&](int64_t, int64_t total) {
    ++calls;
    EXPECT_EQ(total, 3);
  });
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(calls, 3);
  const HeadResult& a = (*one)[0].sums;
  const HeadResult& b = (*two)[0].sums;
  const std::vector<SelectionRule> rules = selection_rules();
  for (size_t g = 0; g < a.selections.size(); ++g) {
    EXPECT_EQ(a.scores[g].rms, b.scores[g].rms);
    for (size_t r = 0; r < rules.size(); ++r) {
      const SelectionSums& s = a.selections[g][r];
      EXPECT_EQ(s.kept, b.selections[g][r].kept);
      EXPECT_EQ(s.output_error, b.selections[g][r].output_error);
      const SelectionSums& narrowest = a.selections[g][0];
      EXPECT_GE(s.kept, narrowest.kept);
      EXPECT_LE(s.dropped_mass, narrowest.dropped_mass + 1e-12);
    }
  }
  EXPECT_EQ(a.pseudo_max.size(), 2u * 9);
}

TEST(Study, NeedleGetsItsScore) {
  const std::vector<float> keys = page_of(make_synthetic(SyntheticKeys::kBias, 64, 1, 7), 64);
  const LayerSample sample = make_synthetic(SyntheticKeys::kBias, 64, 1, 7);
  const std::vector<float> q(sample.q.begin(), sample.q.begin() + kDim);
  for (const GridVariant& variant : grid_variants()) {
    double mean = 0.0;
    for (int32_t c = 0; c < kDim; ++c) mean += double(q[size_t(c)]) * keys[size_t(c * 64)];
    const double target = mean + 100.0;
    const NeedleScan needle = scan_needle(variant, keys, 20, q, target);
    EXPECT_GT(needle.sigma, 0.0);
    if (variant.step == StepRule::kRange) {
      EXPECT_NEAR(needle.score, target, 6 * needle.sigma) << variant.name;
    } else {  // clipped
      EXPECT_LT(needle.score, target - 10.0) << variant.name;
    }
  }
}

}  // namespace
}  // namespace longdecode::study
