// What append_kv refuses on the CPU, which sees lengths, tables and slots.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ops/backends.h"
#include "tests/unit/expect_refused.h"
#include "tests/unit/small_cache.h"

namespace longdecode {
namespace {

using test::cpu_device;
using test::expect_refused;
using test::SmallCache;
using test::TestTensor;

TEST(ValidateAppend, RefusesWhatItCannotWrite) {
  SmallCache cache(KvFormat::gqa(KeyEncoding::kPlain, DType::kBF16, 2, 64, 16), {40, 20});
  TestTensor k(DType::kF32, {2, 3, 2, 64});
  TestTensor v(DType::kF32, {2, 3, 2, 64});
  AppendArgs args;
  args.kv = cache.layer();
  args.batch = cache.batch();
  args.k = k.view();
  args.v = v.view();
  ASSERT_TRUE(append_kv(args, cpu_device(), nullptr).ok());
  const auto refuse = [&](const char* says, const std::function<void(AppendArgs&)>& change) {
    AppendArgs changed = args;
    change(changed);
    expect_refused(append_kv(changed, cpu_device(), nullptr), StatusCode::kInvalidArgument, says);
  };
  const int32_t too_many[] = {4, 0};
  const int32_t short_lens[] = {40, 2};
  refuse("batch.query_lens[0] is 4", [&](auto& a) { a.batch.query_lens = too_many; });
  refuse("query_len[1] is 3 (kv_len 2)", [&](auto& a) { a.batch.kv_lens = short_lens; });
  refuse("v.shape is", [](auto& a) { a.v.shape[1] = 2; });
  refuse("k.data is", [](auto& a) { a.k.data = nullptr; });
  refuse("batch.batch is -2", [](auto& a) { a.batch.batch = -2; });
  cache.block_table()[2] = -7;
  refuse("batch.block_table[0, 2] is -7", [](auto&) {});
  cache.block_table()[2] = 0;
  cache.block_table()[0] = -7;  // an old page: not touched
  EXPECT_TRUE(append_kv(args, cpu_device(), nullptr).ok());
}

// Two sequences that write to the same place would leave one's tokens in the other's.
TEST(ValidateAppend, RefusesPlacesThatTwoSequencesWriteTo) {
  const std::vector<int32_t> new_tokens = {3, 3}, none = {3, 0};
  for (const KeyEncoding keys : {KeyEncoding::kPlain, KeyEncoding::kTwoPlane}) {
    SmallCache cache(KvFormat::gqa(keys, DType::kF32, 2, 64, 64), {140, 70});
    TestTensor k(DType::kF32, {2, 3, 2, 64});
    TestTensor v(DType::kF32, {2, 3, 2, 64});
    AppendArgs args;
    args.kv = cache.layer();
    args.batch = cache.batch();
    args.batch.query_lens = new_tokens.data();
    args.k = k.view();
    args.v = v.view();
    const auto append = [&] { return append_kv(args, cpu_device(), nullptr); };
    ASSERT_TRUE(append().ok()) << append().message();
    std::vector<int32_t>& table = cache.block_table();
    const int64_t width = args.batch.block_table_stride;
    const int32_t own = table[width + 1];
    table[width + 1] = table[2];
    expect_refused(append(), StatusCode::kInvalidArgument,
                   "batch.block_table[1, 1] is " + std::to_string(table[2]));
    args.batch.query_lens = none.data();
    EXPECT_TRUE(append().ok()) << append().message();  // read by both, written by one
    args.batch.query_lens = new_tokens.data();
    table[width + 1] = own;
    table[width] = table[0];  // a shared prefix
    EXPECT_TRUE(append().ok()) << append().message();
    if (keys == KeyEncoding::kPlain) continue;
    const std::vector<int32_t> slots = {1, 1};
    args.batch.slots = slots.data();
    expect_refused(append(), StatusCode::kInvalidArgument, "batch.slots[1] is 1, which another");
  }
}

}  // namespace
}  // namespace longdecode
