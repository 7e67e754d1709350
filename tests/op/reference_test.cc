// The fp64 reference against closed forms: everything else is compared with it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/float_convert.h"
#include "ref/append.h"
#include "ref/attention.h"
#include "ref/ffd.h"
#include "ref/quantize.h"

namespace longdecode {
namespace {

using ref::AttentionOutput;
using ref::AttentionProblem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> random_keys(const KvFormat& format, double mean, double deviation) {
  std::mt19937 rng(7);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> keys(static_cast<size_t>(format.page_size * format.key_dim));
  for (double& key : keys) key = static_cast<double>(static_cast<float>(normal(rng)));
  return keys;
}

struct PageCase {
  double mean;
  double deviation;
};

TEST(Reference, QuantizedPageStaysWithinTheStatedErrors) {
  for (const PageCase page : {PageCase{0, 1},
                              {200, 1},
                              {-50, 0.01},
                              {5, 0},
                              {0, 0},
                              {0, 5e37},
                              {1e-30, 1e-31},
                              {6e4, 100}}) {
    for (const int32_t head_dim : {80, 128}) {
      SCOPED_TRACE(testing::Message() << "mean " << page.mean << " deviation " << page.deviation);
      const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF32, 1, head_dim, 64);
      const std::vector<double> keys = random_keys(format, page.mean, page.deviation);
      std::vector<uint8_t> chunk(static_cast<size_t>(format.chunk_bytes()), 0xff);
      std::vector<uint8_t> residuals(static_cast<size_t>(format.residual_bytes()), 0xff);
      ref::quantize_page(format, keys.data(), chunk.data(), residuals.data());
      for (int32_t t = 0; t < format.page_size; ++t) {
        for (int32_t c = 0; c < head_dim; ++c) {
          const ref::ChannelGrid grid = ref::read_grid(format, chunk.data(), c);
          const int32_t code = ref::read_code(format, chunk.data(), t, c);
          const int32_t residual =
              residuals[static_cast<size_t>(format.residual_offset_bytes(t, c))];
          const double key = keys[static_cast<size_t>(t * head_dim + c)];
          ASSERT_TRUE(std::isfinite(grid.zero) && std::isfinite(grid.step));
          ASSERT_LE(std::abs(ref::exact_value(grid, code, residual) - key),
                    grid.step / 512 * (1 + 1e-9));
          ASSERT_LE(std::abs(ref::scan_value(grid, code) - key), grid.step / 2 * (1 + 1e-9));
          // A K bias must not eat the 2 bits: the step follows the range, not the magnitude.
          if (page.deviation > 0) {
            ASSERT_LE(grid.step, page.deviation * 3.5);
          }
        }
      }
    }
  }
}

TEST(Reference, TwoTokensByHand) {
  const float k[2] = {1.0f, -2.0f};
  const float v[2] = {10.0f, 20.0f};
  const ref::ArraySource kv(k, v, 2, 1, 1, 1);
  AttentionProblem problem;
  problem.kv = &kv;
  problem.num_q_heads = 1;
  problem.query_len = 1;
  problem.q = {0.5};
  problem.softmax_scale = 2.0;
  AttentionOutput out = ref::attend(problem);
  const double a = std::exp(1.0);
  const double b = std::exp(-2.0);
  EXPECT_NEAR(out.o[0], (10 * a + 20 * b) / (a + b), 1e-12);
  EXPECT_NEAR(out.lse[0], std::log(a + b), 1e-12);

  problem.sink_logits = {0.25};
  out = ref::attend(problem);
  EXPECT_NEAR(out.o[0], (10 * a + 20 * b) / (a + b + std::exp(0.25)), 1e-12);
  EXPECT_NEAR(out.lse[0], std::log(a + b + std::exp(0.25)), 1e-12);

  problem.sink_logits.clear();
  problem.soft_cap = 3.0;
  out = ref::attend(problem);
  EXPECT_NEAR(out.lse[0],
              std::log(std::exp(3 * std::tanh(1.0 / 3)) + std::exp(3 * std::tanh(-2.0 / 3))),
              1e-12);

  problem.soft_cap = 0.0;
  problem.sliding_window = 1;
  out = ref::attend(problem);
  EXPECT_NEAR(out.o[0], 20.0, 1e-12);

  problem.sliding_window = 0;
  problem.query_len = 3;  // positions -1, 0, 1
  problem.q = {0.5, 0.5, 0.5};
  out = ref::attend(problem);
  EXPECT_EQ(out.o[0], 0.0);
  EXPECT_EQ(out.lse[0], -kInfinity);
  EXPECT_NEAR(out.o[1], 10.0, 1e-12);
  EXPECT_NEAR(out.lse[2], std::log(a + b), 1e-12);
}

// A two-plane layer of one head, pages in order, filled by ref::append.
struct SmallCache {
  SmallCache(int32_t length, int32_t head_dim)
      : format(KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF32, 1, head_dim, 64)),
        kv_len(length),
        k(static_cast<size_t>(length * head_dim)),
        v(k.size()) {
    const int64_t num_pages = (kv_len + 63) / 64;
    pool_v.resize(static_cast<size_t>(num_pages * 64 * head_dim));
    ring.resize(static_cast<size_t>(format.recent_ring_tokens() * head_dim));
    chunks.resize(static_cast<size_t>(num_pages * format.chunk_bytes()));
    residuals.resize(static_cast<size_t>(num_pages * format.residual_bytes()));
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (float& x : k) x = normal(rng);
    for (float& x : v) x = normal(rng);
    for (int64_t p = 0; p < num_pages; ++p) table.push_back(static_cast<int32_t>(p));
    layer.format = format;
    layer.v = TensorView::contiguous(pool_v.data(), DType::kF32, {num_pages, 1, 64, head_dim});
    layer.chunks = chunks.data();
    layer.chunk_page_stride_bytes = format.chunk_bytes();
    layer.residuals = residuals.data();
    layer.residual_page_stride_bytes = format.residual_bytes();
    layer.num_pages = num_pages;
    layer.recent_k = TensorView::contiguous(ring.data(), DType::kF32,
                                            {1, 1, format.recent_ring_tokens(), head_dim});
    batch.batch = 1;
    batch.block_table = table.data();
    batch.block_table_stride = num_pages;
    batch.kv_lens = &kv_len;
    batch.slots = &slot;
    ref::append({layer, batch,
                 TensorView::contiguous(k.data(), DType::kF32, {1, kv_len, 1, head_dim}),
                 TensorView::contiguous(v.data(), DType::kF32, {1, kv_len, 1, head_dim})});
  }

  KvFormat format;
  int32_t kv_len;
  int32_t slot = 0;
  std::vector<float> k, v, pool_v, ring;
  std::vector<uint8_t> chunks, residuals;
  std::vector<int32_t> table;
  KvLayerView layer;
  BatchView batch;
};

AttentionProblem random_problem(const ref::KvSource& kv, int32_t num_q_heads, int32_t query_len) {
  AttentionProblem problem;
  problem.kv = &kv;
  problem.num_q_heads = num_q_heads;
  problem.query_len = query_len;
  std::mt19937 rng(5);
  std::normal_distribution<double> normal;
  problem.q.resize(static_cast<size_t>(query_len * num_q_heads * kv.key_dim()));
  for (double& x : problem.q) x = normal(rng);
  problem.softmax_scale = 2.0 / std::sqrt(kv.key_dim());
  return problem;
}

TEST(Reference, AppendQuantizesPagesOnceEightTokensPastTheirEndExist) {
  for (const int32_t kv_len : {1, 64, 71, 72, 135, 136, 200}) {
    const SmallCache cache(kv_len, 64);
    const ref::PagedSource kv(cache.layer, cache.batch, 0);
    EXPECT_EQ(kv.num_quantized_tokens(), (kv_len - 8) / 64 * 64) << kv_len;
    std::vector<double> key(64);
    for (int32_t j = 0; j < kv_len; ++j) {
      kv.key(0, j, key.data());
      for (int32_t c = 0; c < 64; ++c) {
        const auto original = static_cast<double>(cache.k[static_cast<size_t>(j * 64 + c)]);
        // 64 Gaussian keys span less than 8: the step is below 2.1, the error below step / 512.
        const double error = j < kv.num_quantized_tokens() ? 2.1 / 512 : 0.0;
        ASSERT_LE(std::abs(key[static_cast<size_t>(c)] - original), error) << kv_len << " " << j;
      }
    }
  }
}

TEST(Reference, SelectionFollowsItsDefinition) {
  const SmallCache cache(700, 80);
  const ref::PagedSource kv(cache.layer, cache.batch, 0);
  const AttentionProblem problem = random_problem(kv, 1, 1);
  FfdOptions options;
  options.sink_tokens = 16;
  options.recent_tokens = 40;
  options.delta = 1.0f;
  const ref::Selection exact = ref::select(problem, kv, options, {.exact = true});
  const ref::Selection scan = ref::select(problem, kv, options, {});
  options.certified = true;
  const ref::Selection certified = ref::select(problem, kv, options, {});
  EXPECT_TRUE(exact.tiles.is_subset_of(certified.tiles));
  EXPECT_EQ(ref::count_missed_exact(problem, kv, options, certified.tiles), 0);
  EXPECT_FALSE(certified.tiles.is_subset_of(exact.tiles));
  EXPECT_EQ(exact.pseudo_max, scan.pseudo_max);
  EXPECT_TRUE(scan.tiles.has(0, 0));
  for (int64_t tile = (699 - 40) / 16; tile < 44; ++tile) EXPECT_TRUE(scan.tiles.has(0, tile));

  options = {};
  options.delta = std::numeric_limits<float>::infinity();
  const ref::Selection all = ref::select(problem, kv, options, {});
  const AttentionOutput kept = ref::attend(problem, &all.tiles);
  EXPECT_EQ(kept.o, ref::attend(problem).o);
}

TEST(Reference, HalvesMergeToTheWhole) {
  const SmallCache cache(100, 64);
  const ref::PagedSource kv(cache.layer, cache.batch, 0);
  const AttentionProblem problem = random_problem(kv, 2, 4);
  const AttentionOutput whole = ref::attend(problem);
  const AttentionOutput merged =
      ref::merge({ref::attend(problem, nullptr, 0, 97), ref::attend(problem, nullptr, 97, 100),
                  ref::attend(problem, nullptr, 100, 100)},
                 64);
  for (size_t i = 0; i < whole.o.size(); ++i) EXPECT_NEAR(whole.o[i], merged.o[i], 1e-12);
  for (size_t i = 0; i < whole.lse.size(); ++i) EXPECT_NEAR(whole.lse[i], merged.lse[i], 1e-12);
}

}  // namespace
}  // namespace longdecode
