// What a call writes must not overlap itself or its inputs.
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <random>
#include <vector>

#include "ops/backends.h"
#include "ops/tensor_checks.h"
#include "tests/unit/expect_refused.h"
#include "tests/unit/small_cache.h"

namespace longdecode {
namespace {

using test::cpu_device;
using test::expect_refused;
using test::SmallCache;
using test::TestTensor;

TEST(ValidateAppend, RefusesPoolsThatOverlapThemselves) {
  const KvFormat plain = KvFormat::gqa(KeyEncoding::kPlain, DType::kBF16, 2, 64, 16);
  SmallCache cache(plain, {40, 20});
  TestTensor rows(DType::kF32, {2, 3, 2, 64});
  AppendArgs args;
  args.kv = cache.layer();
  args.batch = cache.batch();
  args.k = args.v = rows.view();
  ASSERT_TRUE(append_kv(args, cpu_device(), nullptr).ok()) << "an input may be read twice";
  const auto refuse = [&](const char* says, const std::function<void(KvLayerView&)>& change) {
    AppendArgs changed = args;
    change(changed.kv);
    expect_refused(append_kv(changed, cpu_device(), nullptr), StatusCode::kInvalidArgument, says);
  };
  refuse("kv.k.stride[2] is 8", [](auto& kv) { kv.k.stride[2] = 8; });
  refuse("kv.k.stride[1] is 512", [](auto& kv) { kv.k.stride[1] = 512; });
  refuse("kv.v.stride[0] is 0", [](auto& kv) { kv.v.stride[0] = 0; });
  refuse("kv.v.stride[1] is 1024 with shape[1] 2", [](auto& kv) { kv.v.stride[0] = 1024; });
  refuse("kv.v overlaps kv.k", [](auto& kv) { kv.v = kv.k; });
  refuse("kv.k overlaps k", [&](auto& kv) { kv.k.data = rows.view().data; });
  SmallCache two_plane(KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 2, 64, 64), {40, 20});
  args.kv = two_plane.layer();
  args.batch = two_plane.batch();
  ASSERT_TRUE(append_kv(args, cpu_device(), nullptr).ok());
  refuse("kv.recent_k.stride[2] is 64", [](auto& kv) { kv.recent_k.stride[0] = 64; });
  refuse("kv.v.stride[1] is 0", [](auto& kv) { kv.v.stride[1] = 0; });
}

// Random strides: what is accepted addresses no element twice.
TEST(ValidateTensor, WrittenViewsAreFreeOfOverlap) {
  std::mt19937 rng(5);
  std::vector<uint8_t> touched;
  TestTensor base(DType::kF32, {4096});
  int num_accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    TensorView view = base.view();
    view.rank = 4;
    for (int32_t i = 0; i < 4; ++i) {
      view.shape[i] = i == 3 ? 4 : 1 + static_cast<int64_t>(rng() % 4);
      view.stride[i] = i == 3 ? 1 : 4 * static_cast<int64_t>(rng() % 40);
    }
    const bool accepted =
        check_tensor("o", view, {kAnySize, kAnySize, kAnySize, 4}, TensorUse::kWritten).ok();
    num_accepted += accepted ? 1 : 0;
    EXPECT_TRUE(check_tensor("o", view, {kAnySize, kAnySize, kAnySize, 4}).ok()) << "when read";
    touched.assign(4096, 0);
    bool overlaps = false;
    for (int64_t row = 0; row < view.shape[0] * view.shape[1] * view.shape[2]; ++row) {
      const int64_t i = row / (view.shape[1] * view.shape[2]);
      const int64_t j = row / view.shape[2] % view.shape[1];
      const int64_t k = row % view.shape[2];
      const int64_t offset = i * view.stride[0] + j * view.stride[1] + k * view.stride[2];
      for (int64_t c = 0; c < 4; ++c) overlaps = touched[offset + c]++ != 0 || overlaps;
    }
    ASSERT_FALSE(accepted && overlaps)
        << view.stride[0] << " " << view.stride[1] << " " << view.stride[2];
  }
  EXPECT_GT(num_accepted, 200);
  EXPECT_LT(num_accepted, 3800);
}

TEST(ValidateMerge, RefusesOverflowAndOverlap) {
  float memory[64] = {};
  MergeArgs good;
  good.num_partials = 2;
  good.num_rows = 3;
  good.dim = 4;
  good.partial_o = memory;         // 24
  good.partial_lse = memory + 24;  // 6
  good.o = memory + 30;            // 12
  good.lse = memory + 42;          // 3
  ASSERT_TRUE(merge_partials(good, cpu_device(), nullptr).ok());
  const auto refuse = [&](const char* says, const std::function<void(MergeArgs&)>& change) {
    MergeArgs changed = good;
    change(changed);
    expect_refused(merge_partials(changed, cpu_device(), nullptr), StatusCode::kInvalidArgument,
                   says);
  };
  constexpr int64_t kHuge = int64_t{1} << 62;
  refuse("num_rows 4611686018427387904", [](auto& m) { m.num_rows = kHuge; });
  refuse("dim 4611686018427387904", [](auto& m) { m.dim = kHuge; });
  refuse("num_rows 2147483648", [](auto& m) {
    m.num_partials = INT_MAX;
    m.num_rows = m.dim = int64_t{1} << 31;
  });
  refuse("o overlaps partial_o", [&](auto& m) { m.o = memory; });
  refuse("o overlaps partial_lse", [&](auto& m) { m.o = memory + 29; });
  refuse("lse overlaps partial_lse", [&](auto& m) { m.lse = memory + 28; });
  refuse("lse overlaps partial_o", [&](auto& m) { m.lse = memory + 23; });
  refuse("lse overlaps o", [&](auto& m) { m.lse = memory + 41; });
}

// Two sequences of 40 and 20 tokens over a cache of the given keys.
void expect_decode_refuses_overlap(KeyEncoding keys, const char* pool_name) {
  const KvFormat format = KvFormat::gqa(keys, DType::kF32, 2, 64, 64);
  SmallCache cache(format, {40, 20});
  DecodeDesc desc;
  desc.format = format;
  desc.num_q_heads = 4;
  desc.max_batch = 2;
  desc.max_kv_len = 64;
  desc.q_dtype = DType::kF32;
  auto plan = DecodePlan::create(desc, cpu_device());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<uint8_t> workspace(static_cast<size_t>(plan->workspace_bytes()) + 64);
  const auto address = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64;
  ASSERT_TRUE(plan->init(reinterpret_cast<void*>(address), nullptr).ok());
  TestTensor both(DType::kF32, {2, 2, 4, 64});  // [0]: q, [1]: o and, in its rows' gaps, nothing
  DecodeArgs good;
  good.kv = cache.layer();
  good.batch = cache.batch();
  good.q = good.o = both.view();
  for (TensorView* view : {&good.q, &good.o}) {
    view->shape[0] = 2;
    view->shape[1] = 1;
  }
  auto* const data = static_cast<float*>(both.view().data);
  good.o.data = data + 4 * 64;  // q and o are columns of one buffer
  ASSERT_TRUE(plan->run(good, nullptr).ok());
  std::vector<float> lse(8);
  good.lse = lse.data();
  const auto refuse = [&](const std::string& says, const std::function<void(DecodeArgs&)>& change) {
    DecodeArgs changed = good;
    change(changed);
    expect_refused(plan->run(changed, nullptr), StatusCode::kInvalidArgument, says.c_str());
  };
  refuse("o overlaps q", [&](auto& a) { a.o.data = data; });
  refuse("lse overlaps o", [&](auto& a) { a.lse = static_cast<float*>(a.o.data); });
  refuse("lse overlaps batch.kv_lens",
         [&](auto& a) { a.lse = reinterpret_cast<float*>(const_cast<int32_t*>(a.batch.kv_lens)); });
  refuse(std::string("lse overlaps ") + pool_name, [&](auto& a) {
    a.lse = keys == KeyEncoding::kPlain ? static_cast<float*>(a.kv.k.data) + 20
                                        : reinterpret_cast<float*>(a.kv.chunks) + 20;
  });
  refuse("o overlaps kv.v", [&](auto& a) { a.o.data = a.kv.v.data; });
  refuse("stats.pseudo_max overlaps lse", [&](auto& a) { a.stats.pseudo_max = a.lse + 3; });
}

TEST(ValidateDecode, RefusesOutputsOverInputs) {
  expect_decode_refuses_overlap(KeyEncoding::kPlain, "kv.k");
  expect_decode_refuses_overlap(KeyEncoding::kTwoPlane, "kv.chunks");
}

}  // namespace
}  // namespace longdecode
