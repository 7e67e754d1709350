// More sequences than a 16-bit index holds.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/unit/small_cache.h"

namespace longdecode {
namespace {

constexpr int32_t kBatch = 65537;
constexpr int32_t kDim = 64;
constexpr int32_t kPages = 64;
constexpr int32_t kPageSize = 16;

float key_element(int32_t page, int32_t token, int32_t c) {
  return static_cast<float>((page * 5 + token * 3 + c) % 11 - 5) / 8.0f;
}
float value_element(int32_t page, int32_t token, int32_t c) {
  return static_cast<float>((page * 7 + token * 13 + c * 3) % 17);
}
float query_element(int32_t b, int32_t c) { return static_cast<float>((b % 23 + c) % 5 - 2); }

// lse of sequence b, and its output in o.
double reference(int32_t b, int32_t kv_len, int32_t page, std::vector<double>& o) {
  double sum = 0.0;
  o.assign(kDim, 0.0);
  for (int32_t t = 0; t < kv_len; ++t) {
    double score = 0.0;
    for (int32_t c = 0; c < kDim; ++c) {
      score += double{query_element(b, c)} * key_element(page, t, c) / 8.0;
    }
    const double weight = std::exp(score);
    sum += weight;
    for (int32_t c = 0; c < kDim; ++c) o[c] += weight * value_element(page, t, c);
  }
  for (double& x : o) x /= sum;
  return std::log(sum);
}

TEST(ManySequences, Dense) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kPlain, DType::kF32, 1, kDim, kPageSize);
  test::TestTensor k(DType::kF32, {kPages, 1, kPageSize, kDim});
  test::TestTensor v(DType::kF32, {kPages, 1, kPageSize, kDim});
  test::TestTensor q(DType::kF32, {kBatch, 1, 1, kDim});
  test::TestTensor o(DType::kF32, {kBatch, 1, 1, kDim});
  auto* k_data = static_cast<float*>(k.view().data);
  auto* v_data = static_cast<float*>(v.view().data);
  auto* q_data = static_cast<float*>(q.view().data);
  for (int32_t i = 0; i < kPages * kPageSize * kDim; ++i) {
    const int32_t page = i / (kPageSize * kDim), token = i / kDim % kPageSize, c = i % kDim;
    k_data[i] = key_element(page, token, c);
    v_data[i] = value_element(page, token, c);
  }
  std::vector<int32_t> kv_lens(kBatch), pages(kBatch);
  for (int32_t b = 0; b < kBatch; ++b) {
    kv_lens[b] = b % 4;  // a quarter of them is empty
    pages[b] = b % 61;
    for (int32_t c = 0; c < kDim; ++c) q_data[int64_t{b} * kDim + c] = query_element(b, c);
  }
  std::vector<float> lse(kBatch, 7.0f);
  DecodeDesc desc = test::dense_desc(format, 1, kPageSize);
  desc.q_dtype = DType::kF32;
  desc.max_batch = kBatch;
  desc.max_query_len = 1;
  auto plan = DecodePlan::create(desc, test::cpu_device(2));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  test::Poisoned workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->init(workspace.data(), nullptr).ok());
  DecodeArgs args;
  args.q = q.view();
  args.o = o.view();
  args.lse = lse.data();
  args.kv.format = format;
  args.kv.k = k.view();
  args.kv.v = v.view();
  args.batch.batch = kBatch;
  args.batch.block_table = pages.data();
  args.batch.block_table_stride = 1;
  args.batch.kv_lens = kv_lens.data();
  const Status status = plan->run(args, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto* o_data = static_cast<const float*>(o.view().data);
  std::vector<double> expected;
  for (int32_t b = 0; b < kBatch; ++b) {
    const double expected_lse = reference(b, kv_lens[b], pages[b], expected);
    if (kv_lens[b] == 0) {
      ASSERT_EQ(lse[b], -INFINITY) << b;
      ASSERT_EQ(o_data[int64_t{b} * kDim], 0.0f) << b;
      continue;
    }
    ASSERT_NEAR(lse[b], expected_lse, 1e-5) << b;
    for (int32_t c = 0; c < kDim; ++c) {
      ASSERT_NEAR(o_data[int64_t{b} * kDim + c], expected[c], 1e-4) << b;
    }
  }
}

}  // namespace
}  // namespace longdecode
