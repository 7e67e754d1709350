// Everything a caller can get wrong is refused with a message that names the argument and its
// value, and nothing is written.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "ops/backends.h"
#include "tests/unit/expect_refused.h"
#include "tests/unit/small_cache.h"

namespace longdecode {
namespace {

using test::cpu_device;
using test::dense_desc;
using test::expect_refused;
using test::SmallCache;
using test::TestRun;
using test::TestTensor;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

KvFormat plain(DType dtype = DType::kBF16) {
  return KvFormat::gqa(KeyEncoding::kPlain, dtype, 2, 64, 16);
}

struct DescCase {
  const char* says;
  std::function<void(DecodeDesc&)> change;
  StatusCode code = StatusCode::kInvalidArgument;
};

TEST(ValidateDesc, RefusesEveryBadField) {
  const DescCase cases[] = {
      {"method is 2", [](auto& d) { d.method = static_cast<Method>(2); }},
      {"format.key_dim is 72", [](auto& d) { d.format.key_dim = d.format.value_dim = 72; }},
      {"format.page_size is 48", [](auto& d) { d.format.page_size = 48; }},
      {"q_dtype is 9", [](auto& d) { d.q_dtype = static_cast<DType>(9); }},
      {"num_q_heads is 0", [](auto& d) { d.num_q_heads = 0; }},
      {"num_q_heads is 5", [](auto& d) { d.num_q_heads = 5; }},
      {"num_q_heads is 34", [](auto& d) { d.num_q_heads = 34; }},
      {"max_batch is 0", [](auto& d) { d.max_batch = 0; }},
      {"max_query_len is 9", [](auto& d) { d.max_query_len = 9; }},
      {"max_kv_len is 0", [](auto& d) { d.max_kv_len = 0; }},
      {"max_kv_len is 2147483648", [](auto& d) { d.max_kv_len = int64_t{1} << 31; }},
      {"softmax_scale is -1", [](auto& d) { d.softmax_scale = -1.0f; }},
      {"softmax_scale is nan", [](auto& d) { d.softmax_scale = kNaN; }},
      {"softmax_scale is inf", [](auto& d) { d.softmax_scale = kInfinity; }},
      {"soft_cap is -2", [](auto& d) { d.soft_cap = -2.0f; }},
      {"sliding_window is -1", [](auto& d) { d.sliding_window = -1; }},
      {"softmax_scale is 0; mla",
       [](auto& d) {
         d.format = KvFormat::mla(DType::kBF16, 64);
         d.softmax_scale = 0.0f;
       }},
      {"num_q_heads is 129",
       [](auto& d) {
         d.format = KvFormat::mla(DType::kBF16, 64);
         d.num_q_heads = 129;
       }},
      {"ffd.delta is nan",
       [](auto& d) {
         d.method = Method::kFfd;
         d.ffd.delta = kNaN;
       }},
      {"ffd.delta is -1",
       [](auto& d) {
         d.method = Method::kFfd;
         d.ffd.delta = -1.0f;
       }},
      {"ffd.margin_sigmas is inf",
       [](auto& d) {
         d.method = Method::kFfd;
         d.ffd.margin_sigmas = kInfinity;
       }},
      {"ffd.sink_tokens is -1",
       [](auto& d) {
         d.method = Method::kFfd;
         d.ffd.sink_tokens = -1;
       }},
      {"ffd.recent_tokens is -1",
       [](auto& d) {
         d.method = Method::kFfd;
         d.ffd.recent_tokens = -1;
       }},
      {"format.keys 0 (plain)", [](auto& d) { d.method = Method::kFfd; }, StatusCode::kUnsupported},
      {"format.op 1 (mla)",
       [](auto& d) {
         d.format = KvFormat::mla(DType::kBF16, 64);
         d.softmax_scale = 0.1f;
         d.method = Method::kFfd;
       },
       StatusCode::kUnsupported},
  };
  for (const DescCase& c : cases) {
    DecodeDesc desc = dense_desc(plain(), 4, 100);
    c.change(desc);
    SCOPED_TRACE(c.says);
    expect_refused(select_kernel(desc, cpu_device()).status(), c.code, c.says);
    EXPECT_FALSE(DecodePlan::create(desc, cpu_device()).ok());
  }
}

TEST(ValidateDesc, AcceptsTheWholeMatrix) {
  for (int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    for (int32_t head_dim : {64, 80, 96, 128, 256}) {
      for (int32_t page_size : {1, 16, 32, 64, 128}) {
        const KvFormat format =
            KvFormat::gqa(KeyEncoding::kPlain, DType::kF16, 3, head_dim, page_size);
        const auto choice = select_kernel(dense_desc(format, 3 * group, 9000), cpu_device());
        ASSERT_TRUE(choice.ok()) << choice.status().message();
        EXPECT_EQ(choice->name, "cpu/gqa_decode");
      }
    }
  }
  for (int32_t heads : {1, 3, 8, 9, 16, 20, 24, 40, 63, 64, 96, 126, 128}) {
    const DecodeDesc desc = dense_desc(KvFormat::mla(DType::kBF16, 64), heads, 9000);
    const auto choice = select_kernel(desc, cpu_device());
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->name, "cpu/mla_decode");
  }
}

TEST(ValidateDesc, DeviceWithoutBackend) {
  DeviceInfo device;
  device.type = static_cast<DeviceType>(7);
  expect_refused(select_kernel(dense_desc(plain(), 4, 100), device).status(),
                 StatusCode::kUnavailable, "device.type is 7");
  expect_refused(detect_device(device.type).status(), StatusCode::kUnavailable, "device.type is 7");
  expect_refused(detect_device(DeviceType::kCpu, 3).status(), StatusCode::kUnavailable,
                 "device_idx is 3");
  const Result<DeviceInfo> cpu = detect_device(DeviceType::kCpu);
  ASSERT_TRUE(cpu.ok()) << cpu.status().message();
  EXPECT_GE(cpu->num_threads, 1);
  device = cpu_device(0);
  expect_refused(select_kernel(dense_desc(plain(), 4, 100), device).status(),
                 StatusCode::kInvalidArgument, "num_threads is 0; allowed: 1 to 1024");
  device = cpu_device(kMaxThreads + 1);
  expect_refused(select_kernel(dense_desc(plain(), 4, 100), device).status(),
                 StatusCode::kInvalidArgument, "num_threads is 1025; allowed: 1 to 1024");
  EXPECT_LE(cpu->num_threads, kMaxThreads);
}

TEST(DecodePlan, AMovedFromPlanIsRefused) {
  DecodePlan plan =
      std::move(DecodePlan::create(dense_desc(plain(), 4, 100), cpu_device())).value();
  DecodePlan moved = std::move(plan);
  // NOLINTBEGIN(bugprone-use-after-move): what is tested
  expect_refused(plan.init(nullptr, nullptr), StatusCode::kFailedPrecondition, "moved from");
  expect_refused(plan.run({}, nullptr), StatusCode::kFailedPrecondition, "moved from");
  EXPECT_EQ(plan.workspace_bytes(), 0);
  EXPECT_EQ(plan.kernel().name, "");
  EXPECT_EQ(plan.desc().max_kv_len, 0);
  plan = std::move(moved);
  EXPECT_EQ(plan.desc().max_kv_len, 100);
  // NOLINTEND(bugprone-use-after-move)
}

TEST(DecodePlan, ResolvesTheDefaultScale) {
  const Result<DecodePlan> plan = DecodePlan::create(dense_desc(plain(), 4, 100), cpu_device());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->desc().softmax_scale, 0.125f);
}

struct RunCase {
  const char* says;
  std::function<void(TestRun&, SmallCache&)> change;
};

void expect_runs_refused(const KvFormat& format, std::initializer_list<RunCase> cases) {
  for (const RunCase& c : cases) {
    SCOPED_TRACE(c.says);
    SmallCache cache(format, {40, 150});
    TestRun run(dense_desc(format, 4, 200), cache, 2);
    c.change(run, cache);
    expect_refused(run.run(), StatusCode::kInvalidArgument, c.says);
    for (int64_t i = 0; i < run.o.count(); ++i) ASSERT_TRUE(std::isnan(run.o.at(i)));
    for (float lse : run.lse) ASSERT_EQ(lse, -7.0f);
  }
}

TEST(ValidateRun, BoundsTheTableOfASingleSequence) {
  SmallCache cache(plain(), {150});
  TestRun run(dense_desc(plain(), 4, 200), cache, 1);
  for (const int64_t stride : {0, 1, 9}) {
    run.args.batch.block_table_stride = stride;
    expect_refused(run.run(), StatusCode::kInvalidArgument,
                   "batch.block_table_stride is " + std::to_string(stride));
  }
}

TEST(ValidateRun, RefusesBadTensors) {
  static const float kSinks[4] = {};
  expect_runs_refused(
      plain(), {
                   {"query_len is 9", [](auto& r, auto&) { r.args.query_len = 9; }},
                   {"query_len is 0", [](auto& r, auto&) { r.args.query_len = 0; }},
                   {"q.rank is 3", [](auto& r, auto&) { r.args.q.rank = 3; }},
                   {"q.shape is [2, 2, 4, 63]", [](auto& r, auto&) { r.args.q.shape[3] = 63; }},
                   {"q.dtype is 1", [](auto& r, auto&) { r.args.q.dtype = DType::kF16; }},
                   {"o.dtype is 7", [](auto& r, auto&) { r.args.o.dtype = static_cast<DType>(7); }},
                   {"o.data is", [](auto& r, auto&) { r.args.o.data = nullptr; }},
                   {"q.data is",
                    [](auto& r, auto&) { r.args.q.data = static_cast<char*>(r.args.q.data) + 8; }},
                   {"q.stride[3] is 2", [](auto& r, auto&) { r.args.q.stride[3] = 2; }},
                   {"q.stride[1] is 257", [](auto& r, auto&) { r.args.q.stride[1] = 257; }},
                   {"q.stride[1] is 4611686018427387904",
                    [](auto& r, auto&) { r.args.q.stride[1] = int64_t{1} << 62; }},
                   {"q.stride[0] is -512", [](auto& r, auto&) { r.args.q.stride[0] = -512; }},
                   {"o.stride[2] is 0", [](auto& r, auto&) { r.args.o.stride[2] = 0; }},
                   {"o.stride[2] is 48", [](auto& r, auto&) { r.args.o.stride[2] = 48; }},
                   {"o.stride[1] is 192", [](auto& r, auto&) { r.args.o.stride[1] = 192; }},
                   {"o overlaps q", [](auto& r, auto&) { r.args.o.data = r.args.q.data; }},
                   {"kv.k.dtype is 0", [](auto& r, auto&) { r.args.kv.k.dtype = DType::kF32; }},
                   {"kv.v.shape is", [](auto& r, auto&) { r.args.kv.v.shape[1] = 3; }},
                   {"kv.k.stride[2] is 68", [](auto& r, auto&) { r.args.kv.k.stride[2] = 68; }},
                   {"kv.format", [](auto& r, auto&) { r.args.kv.format.page_size = 32; }},
                   {"sink_logits is given", [](auto& r, auto&) { r.args.sink_logits = kSinks; }},
                   {"sink_logits is null", [](auto& r, auto&) { r.desc.learned_sinks = true; }},
               });
}

TEST(ValidateRun, RefusesBadBatches) {
  static const int32_t kTooMany[] = {3, 1};
  static const int32_t kNegative[] = {2, -1};
  static uint32_t kWords[8] = {};
  expect_runs_refused(
      plain(),
      {
          {"batch.batch is -1", [](auto& r, auto&) { r.args.batch.batch = -1; }},
          {"batch.batch is 9", [](auto& r, auto&) { r.args.batch.batch = 9; }},
          {"batch.kv_lens is null", [](auto& r, auto&) { r.args.batch.kv_lens = nullptr; }},
          {"batch.block_table is null", [](auto& r, auto&) { r.args.batch.block_table = nullptr; }},
          {"batch.block_table_stride is 9",
           [](auto& r, auto&) { r.args.batch.block_table_stride = 9; }},
          {"batch.query_lens[0] is 3", [](auto& r, auto&) { r.args.batch.query_lens = kTooMany; }},
          {"batch.query_lens[1] is -1",
           [](auto& r, auto&) { r.args.batch.query_lens = kNegative; }},
          {"batch.kv_lens[1] is -5", [](auto&, auto& c) { c.kv_lens()[1] = -5; }},
          {"batch.kv_lens[0] is 201", [](auto&, auto& c) { c.kv_lens()[0] = 201; }},
          {"batch.block_table[0, 2] is -1", [](auto&, auto& c) { c.block_table()[2] = -1; }},
          {"batch.block_table[0, 0] is 2147480000",
           [](auto&, auto& c) { c.block_table()[0] = 2147480000; }},
          {"stats.kept_tiles_stride is 0",
           [](auto& r, auto&) { r.args.stats.kept_tiles = kWords; }},
      });
}

TEST(ValidateRun, RefusesBadTwoPlaneLayers) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 2, 64, 64);
  static const int32_t kSlots[] = {0, 2};
  expect_runs_refused(
      format,
      {
          {"kv.chunks is", [](auto& r, auto&) { r.args.kv.chunks = nullptr; }},
          {"kv.residuals is", [](auto& r, auto&) { r.args.kv.residuals += 4; }},
          {"page stride of kv.chunks is 16",
           [](auto& r, auto&) { r.args.kv.chunk_page_stride_bytes = 16; }},
          {"page stride of kv.chunks is 9223372036854775792",
           [](auto& r, auto&) { r.args.kv.chunk_page_stride_bytes = INT64_MAX - 15; }},
          {"page stride of kv.residuals is 9223372036854775792",
           [](auto& r, auto&) { r.args.kv.residual_page_stride_bytes = INT64_MAX - 15; }},
          {"kv.v.shape is", [](auto& r, auto&) { r.args.kv.num_pages += 1; }},
          {"kv.recent_k.shape is", [](auto& r, auto&) { r.args.kv.recent_k.shape[2] = 64; }},
          {"batch.slots is null", [](auto& r, auto&) { r.args.batch.slots = nullptr; }},
          {"batch.slots[1] is 2", [](auto& r, auto&) { r.args.batch.slots = kSlots; }},
      });
}

TEST(ValidateRun, WhatIsNotReadMayBeGarbage) {
  SmallCache cache(plain(), {40, 150, 0, 17});
  DecodeDesc desc = dense_desc(plain(), 4, 200);
  desc.sliding_window = 20;
  TestRun run(desc, cache, 1);
  const int32_t query_lens[] = {1, 1, 1, 0};
  run.args.batch.query_lens = query_lens;
  cache.block_table()[0] = -1;  // tokens 0..15 lie before the window
  const int64_t width = run.args.batch.block_table_stride;
  cache.block_table()[static_cast<size_t>(2 * width)] = INT_MIN;  // empty sequence
  cache.block_table()[static_cast<size_t>(3 * width)] = INT_MIN;  // padding
  EXPECT_TRUE(run.run().ok()) << run.run().message();
  for (int64_t i = 0; i < run.o.count(); ++i) EXPECT_FALSE(std::isnan(run.o.at(i)));
}

TEST(ValidateRun, StridesOfSizeOneDimensionsAreIgnored) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kPlain, DType::kF32, 1, 64, 1);
  SmallCache cache(format, {30});
  TestRun run(dense_desc(format, 1, 30), cache, 1);
  ASSERT_TRUE(run.run().ok());
  const float expected = run.o.at(5);
  for (int i = 0; i < 3; ++i) {
    run.args.q.stride[i] = INT64_MAX;
    run.args.o.stride[i] = -3;
  }
  run.args.kv.k.stride[1] = run.args.kv.k.stride[2] = INT64_MAX;
  run.args.kv.v.stride[1] = run.args.kv.v.stride[2] = 7;
  ASSERT_TRUE(run.run().ok()) << run.run().message();
  EXPECT_EQ(run.o.at(5), expected);
}

TEST(ValidateRun, AnEmptyBatchDoesNothing) {
  Result<DecodePlan> plan = DecodePlan::create(dense_desc(plain(), 4, 100), cpu_device());
  ASSERT_TRUE(plan.ok());
  expect_refused(plan->run({}, nullptr), StatusCode::kFailedPrecondition, "init");
  expect_refused(plan->init(nullptr, nullptr), StatusCode::kInvalidArgument, "workspace is");
  test::Poisoned workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->init(workspace.data(), nullptr).ok());
  EXPECT_TRUE(plan->run({}, nullptr).ok());
}

TEST(ValidatePrefillAndMerge, RefuseBadArguments) {
  SmallCache cache(plain(), {40});
  TestTensor q(DType::kF32, {41, 4, 64});
  TestTensor o(DType::kF32, {41, 4, 64});
  PrefillArgs args;
  args.q = q.view();
  args.o = o.view();
  args.kv = cache.layer();
  args.batch = cache.batch();
  args.softmax_scale = 0.1f;
  expect_refused(prefill_attention(args, cpu_device(), nullptr), StatusCode::kInvalidArgument,
                 "is 41 (kv_len 40)");
  args.q.shape[0] = args.o.shape[0] = 3;
  PrefillArgs in_place = args;
  in_place.o.data = args.q.data;
  expect_refused(prefill_attention(in_place, cpu_device(), nullptr), StatusCode::kInvalidArgument,
                 "o overlaps q");
  args.softmax_scale = 0.0f;
  expect_refused(prefill_attention(args, cpu_device(), nullptr), StatusCode::kInvalidArgument,
                 "softmax_scale is 0");
  expect_refused(merge_partials({}, cpu_device(), nullptr), StatusCode::kInvalidArgument,
                 "num_partials is 0");
  MergeArgs merge;
  merge.num_partials = merge.dim = merge.num_rows = 1;
  expect_refused(merge_partials(merge, cpu_device(), nullptr), StatusCode::kInvalidArgument,
                 "partial_o is null");
  merge.num_rows = 0;
  EXPECT_TRUE(merge_partials(merge, cpu_device(), nullptr).ok());
}

}  // namespace
}  // namespace longdecode
