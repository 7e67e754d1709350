// Dense decode, prefill and merge of the CPU backend against the fp64 reference, and what their
// bits may depend on.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/backends.h"
#include "ref/attention.h"
#include "ref/decode.h"
#include "tests/unit/small_cache.h"

namespace longdecode {
namespace {

using test::cpu_device;
using test::dense_desc;
using test::SmallCache;
using test::TestRun;
using test::TestTensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

KvFormat gqa(DType dtype, int32_t num_kv_heads, int32_t head_dim, int32_t page_size) {
  return KvFormat::gqa(KeyEncoding::kPlain, dtype, num_kv_heads, head_dim, page_size);
}

// fp32 accumulation of up to 1500 terms and one rounding to the output dtype.
void expect_matches_reference(TestRun& run, double tolerance = 1e-5) {
  const Status status = run.run();
  ASSERT_TRUE(status.ok()) << status.message();
  const int64_t rows = int64_t{run.args.query_len} * run.desc.num_q_heads;
  const int64_t dim = run.desc.format.value_dim;
  for (int32_t b = 0; b < run.args.batch.batch; ++b) {
    const ref::DecodeResult expected = ref::decode(run.desc, run.args, b);
    for (int64_t r = 0; r < rows; ++r) {
      const double lse = expected.attention.lse[static_cast<size_t>(r)];
      const auto actual = static_cast<double>(run.lse[static_cast<size_t>(b * rows + r)]);
      if (std::isinf(lse)) {
        ASSERT_EQ(actual, lse) << "sequence " << b << " row " << r;
      } else {
        ASSERT_NEAR(actual, lse, 1e-5) << "sequence " << b << " row " << r;
      }
      for (int64_t c = 0; c < dim; ++c) {
        const double o = expected.attention.o[static_cast<size_t>(r * dim + c)];
        ASSERT_NEAR(static_cast<double>(run.o.at((b * rows + r) * dim + c)), o,
                    tolerance * std::max(1.0, std::fabs(o)))
            << "sequence " << b << " row " << r << " channel " << c;
      }
    }
  }
}

TEST(CpuDecode, RaggedBatch) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    SmallCache cache(gqa(dtype, 2, 80, 16), {13, 0, 1, 1500, 511, 512, 513, 64});
    ASSERT_TRUE(cache.append_status().ok()) << cache.append_status().message();
    TestRun run(dense_desc(cache.layer().format, 6, 2048), cache, 1);
    expect_matches_reference(run);
  }
}

TEST(CpuDecode, SixteenBitOutput) {
  SmallCache cache(gqa(DType::kBF16, 1, 64, 32), {77, 200});
  DecodeDesc desc = dense_desc(cache.layer().format, 4, 256);
  desc.q_dtype = DType::kBF16;
  TestRun bf16(desc, cache, 1);
  expect_matches_reference(bf16, 0x1p-8);
  desc.q_dtype = DType::kF16;
  TestRun f16(desc, cache, 1);
  expect_matches_reference(f16, 0x1p-11);
}

TEST(CpuDecode, SeveralQueryTokens) {
  const int32_t query_lens[] = {8, 0, 3, 8, 1};
  for (bool causal : {true, false}) {
    for (int64_t window : {0, 1, 5, 600}) {
      SmallCache cache(gqa(DType::kF32, 2, 64, 64), {700, 20, 3, 5, 0});
      DecodeDesc desc = dense_desc(cache.layer().format, 6, 700);
      desc.causal = causal;
      desc.sliding_window = window;
      TestRun run(desc, cache, 8);
      run.args.batch.query_lens = query_lens;
      SCOPED_TRACE(testing::Message() << "causal " << causal << " window " << window);
      expect_matches_reference(run);
    }
  }
}

TEST(CpuDecode, SoftCapAndSinks) {
  SmallCache cache(gqa(DType::kF32, 2, 96, 1), {1200, 9, 0});
  DecodeDesc desc = dense_desc(cache.layer().format, 4, 1200);
  desc.softmax_scale = 0.5f;
  desc.soft_cap = 4.0f;
  desc.learned_sinks = true;
  const float sinks[] = {0.0f, 3.0f, -2.0f, 9.0f};
  TestRun run(desc, cache, 2);
  run.args.sink_logits = sinks;
  expect_matches_reference(run);
}

TEST(CpuDecode, LatentCache) {
  for (int32_t heads : {1, 9, 16}) {
    SmallCache cache(KvFormat::mla(DType::kBF16, 64), {600, 30});
    TestRun run(dense_desc(cache.layer().format, heads, 1024), cache, 2);
    expect_matches_reference(run);
  }
}

std::vector<float> outputs(TestRun& run) {
  std::vector<float> values = run.lse;
  for (int64_t i = 0; i < run.o.count(); ++i) values.push_back(run.o.at(i));
  return values;
}

TEST(CpuDecode, BitsDependOnTheSequenceAlone) {
  SmallCache cache(gqa(DType::kBF16, 2, 128, 16), {1500, 70, 1500});
  TestRun run(dense_desc(cache.layer().format, 8, 2048), cache, 1);
  ASSERT_TRUE(run.run(cpu_device(1)).ok());
  const std::vector<float> one_thread = outputs(run);
  ASSERT_TRUE(run.run(cpu_device(3)).ok());
  EXPECT_EQ(outputs(run), one_thread);
  // The first sequence alone.
  run.args.batch.batch = 1;
  run.args.q.shape[0] = 1;
  run.args.o.shape[0] = 1;
  ASSERT_TRUE(run.run().ok());
  EXPECT_EQ(outputs(run), one_thread);
}

TEST(CpuDecode, Statistics) {
  SmallCache cache(gqa(DType::kBF16, 2, 64, 16), {1100, 0});
  DecodeDesc desc = dense_desc(cache.layer().format, 2, 2048);
  desc.sliding_window = 100;
  TestRun run(desc, cache, 1);
  int64_t attended[4] = {-1, -1, -1, -1};
  int64_t scanned[4] = {-1, -1, -1, -1};
  int64_t bytes[4] = {-1, -1, -1, -1};
  float pseudo_max[4] = {};
  float bound[4] = {1, 1, 1, 1};
  uint32_t tiles[4 * 3] = {};
  run.args.stats = {scanned, attended, bytes, pseudo_max, bound, tiles, 3};
  expect_matches_reference(run);
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(attended[head], 100);
    EXPECT_EQ(attended[2 + head], 0);
    EXPECT_EQ(scanned[head], 0);
    EXPECT_EQ(bytes[head], 100 * 2 * 64 * 2);
    EXPECT_EQ(pseudo_max[head], -kInfinity);
    EXPECT_EQ(bound[head], 0.0f);
    // Tokens 1000..1099: tiles 62..68.
    EXPECT_EQ(tiles[3 * head], 0u);
    EXPECT_EQ(tiles[3 * head + 1], 0xC0000000u);
    EXPECT_EQ(tiles[3 * head + 2], 0x1Fu);
    EXPECT_EQ(tiles[3 * (2 + head) + 2], 0u);
  }
}

void expect_prefill_matches(const KvFormat& format, int32_t kv_len, int32_t num_tokens,
                            int64_t window) {
  SmallCache cache(format, {kv_len});
  ASSERT_TRUE(cache.append_status().ok()) << cache.append_status().message();
  const int32_t num_q_heads = 3 * format.num_kv_heads;
  TestTensor q(DType::kF32, {num_tokens, num_q_heads, format.key_dim});
  TestTensor o(DType::kF32, {num_tokens, num_q_heads, format.value_dim});
  q.fill_normal(cache.rng(), 1.0f);
  PrefillArgs args;
  args.q = q.view();
  args.o = o.view();
  args.kv = cache.layer();
  args.batch = cache.batch();
  args.softmax_scale = 0.1f;
  args.sliding_window = window;
  const Status status = prefill_attention(args, cpu_device(), nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const ref::AttentionOutput expected = ref::prefill(args);
  for (int64_t i = 0; i < o.count(); ++i) {
    ASSERT_NEAR(static_cast<double>(o.at(i)), expected.o[static_cast<size_t>(i)], 1e-5) << i;
  }
}

TEST(CpuPrefill, EveryFormat) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    expect_prefill_matches(gqa(dtype, 2, 64, 16), 150, 150, 0);
    expect_prefill_matches(gqa(dtype, 1, 80, 128), 333, 70, 40);
    expect_prefill_matches(KvFormat::gqa(KeyEncoding::kTwoPlane, dtype, 2, 80, 64), 300, 100, 0);
    expect_prefill_matches(KvFormat::gqa(KeyEncoding::kTwoPlane, dtype, 1, 128, 128), 400, 1, 300);
  }
  // Query blocks that end inside a quantised page, not on a tile.
  expect_prefill_matches(KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 2, 64, 64), 701, 301,
                         0);
  expect_prefill_matches(KvFormat::mla(DType::kBF16, 32), 100, 30, 0);
}

TEST(CpuMerge, HalvesMakeTheWhole) {
  const std::vector<float> o = {1.0f, 2.0f, NAN, NAN, NAN, NAN, 3.0f, 6.0f, 5.0f, -5.0f, NAN, NAN};
  const std::vector<float> lse = {0.0f, -kInfinity, -kInfinity, std::log(3.0f), 1e5f, -kInfinity};
  std::vector<float> merged(6, NAN);
  std::vector<float> merged_lse(3, NAN);
  const MergeArgs args{2, 3, 2, o.data(), lse.data(), merged.data(), merged_lse.data()};
  const Status status = merge_partials(args, cpu_device(), nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_FLOAT_EQ(merged[0], 0.25f * 1.0f + 0.75f * 3.0f);
  EXPECT_FLOAT_EQ(merged[1], 0.25f * 2.0f + 0.75f * 6.0f);
  EXPECT_EQ(merged[2], 5.0f);
  EXPECT_EQ(merged[3], -5.0f);
  EXPECT_EQ(merged[4], 0.0f);
  EXPECT_FLOAT_EQ(merged_lse[0], std::log(4.0f));
  EXPECT_EQ(merged_lse[1], 1e5f);
  EXPECT_EQ(merged_lse[2], -kInfinity);
}

}  // namespace
}  // namespace longdecode
