// KvCache on the CPU: what is stored, sharing, limits, errors.
#include "longdecode/kv_cache.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "cache_rig.h"

namespace longdecode {
namespace {

class KvCacheFormats : public testing::TestWithParam<int> {
 protected:
  KvFormat format() const { return cache_formats()[GetParam()]; }
  bool two_plane() const { return format().keys == KeyEncoding::kTwoPlane; }
};

TEST_P(KvCacheFormats, RandomOperationsEqualAVectorOfTokens) {
  std::mt19937 rng(GetParam());
  const auto below = [&](size_t n) { return static_cast<int32_t>(rng() % n); };
  const int32_t page_size = format().page_size;
  const int64_t num_pages = page_size == 1 ? 600 : 14;
  CacheRig rig(cache_desc(format(), num_pages, 5, 400));
  uint32_t next_token = 1;
  for (int round = 0; round < 160; ++round) {
    std::vector<SequenceId> live;
    for (const auto& entry : rig.model) live.push_back(entry.first);
    const int32_t action = below(14);
    if (live.empty() || (action == 0 && live.size() < 5)) {
      rig.add();
    } else if (action == 1) {
      const SequenceId victim = live[below(live.size())];
      ASSERT_TRUE(rig.cache.free_sequence(victim).ok());
      rig.model.erase(victim);
    } else if (action <= 3) {
      const SequenceId parent = live[below(live.size())];
      auto child = rig.cache.fork(parent);
      if (child.ok()) rig.model[*child] = rig.model[parent];
      if (!child.ok()) {
        ASSERT_EQ(child.status().code(), StatusCode::kOutOfMemory);
      }
    } else if (action <= 6) {
      const SequenceId sequence = live[below(live.size())];
      const int32_t count = std::min<int32_t>(below(two_plane() ? 9 : 40),
                                              static_cast<int32_t>(rig.model[sequence].size()));
      Status status = rig.truncate(sequence, count);
      ASSERT_TRUE(status.ok() || two_plane()) << status.message();
    } else {
      std::shuffle(live.begin(), live.end(), rng);
      live.resize(1 + below(live.size()));
      std::vector<std::vector<uint32_t>> tokens(live.size());
      for (auto& list : tokens) {
        list.resize(below(action == 7 ? 170 : action == 8 ? 60 : 9));
        for (uint32_t& token : list) token = next_token++;
      }
      Status status = rig.step(live, tokens);
      ASSERT_TRUE(status.ok() || status.code() == StatusCode::kOutOfMemory ||
                  status.message().find("max_kv_len") != std::string::npos)
          << status.message();
    }
    if (round % 4 == 3) {
      ASSERT_NO_FATAL_FAILURE(rig.expect_equal_to_model()) << "round " << round;
    }
  }
  for (const auto& entry : rig.model) ASSERT_TRUE(rig.cache.free_sequence(entry.first).ok());
  EXPECT_EQ(rig.cache.num_free_pages(), num_pages);
}

// Two conversations continue from one prefix; one is truncated by 3 tokens and continued.
TEST_P(KvCacheFormats, ForkTruncateContinueEqualsAppendingFromScratch) {
  for (const uint32_t prefix : {1u, 63u, 64u, 66u, 72u, 127u, 128u, 130u, 136u, 200u}) {
    SCOPED_TRACE(prefix);
    CacheRig rig(cache_desc(format(), format().page_size == 1 ? 2000 : 60, 4, 400));
    const SequenceId a = rig.add();
    ASSERT_TRUE(rig.step(a, 1, prefix).ok());
    const SequenceId b = rig.fork(a);
    ASSERT_TRUE(rig.step(a, 1000, 6).ok());
    ASSERT_TRUE(rig.truncate(a, 3).ok());
    ASSERT_TRUE(rig.step({b, a}, {{2000, 2001}, {3000}}).ok());
    for (uint32_t i = 0; i < 80; ++i) ASSERT_TRUE(rig.step({a, b}, {{4000 + i}, {5000 + i}}).ok());
    const std::vector<double> from_a = rig.contents(a);
    const std::vector<double> from_b = rig.contents(b);
    const std::vector<float> o_a = rig.decode(a);
    const std::vector<float> o_b = rig.decode(b);
    EXPECT_NE(o_a, o_b);
    for (const SequenceId sequence : {a, b}) {
      CacheRig scratch(cache_desc(format(), format().page_size == 1 ? 2000 : 60, 4, 400));
      const SequenceId whole = scratch.add();
      ASSERT_TRUE(scratch.step({whole}, {rig.model[sequence]}).ok());
      EXPECT_EQ(scratch.contents(whole), sequence == a ? from_a : from_b);
      EXPECT_EQ(scratch.decode(whole), sequence == a ? o_a : o_b);
    }
  }
}

TEST_P(KvCacheFormats, AFailedAppendLeavesTheStepUsable) {
  CacheRig rig(cache_desc(format(), 300, 2, 300));
  const SequenceId a = rig.add();
  ASSERT_TRUE(rig.step(a, 1, 70).ok());
  const std::vector<std::vector<uint32_t>> tokens = {{100, 101, 102}};
  const std::vector<SequenceId> sequences = {a};
  const std::vector<int32_t> counts = {3};
  ASSERT_TRUE(rig.cache.reserve(sequences, counts).ok());
  const TensorView k = rig.tensor(tokens, 0, true);
  const TensorView v = rig.tensor(tokens, 0, false);
  TensorView narrow = k;
  narrow.shape[3] -= 16;
  TensorView short_k = k;
  short_k.shape[1] = 2;
  TensorView null_k = k;
  null_k.data = nullptr;
  TensorView wrong_batch = k;
  wrong_batch.shape[0] = 2;
  for (const TensorView& bad : {narrow, short_k, null_k, wrong_batch, TensorView{}}) {
    EXPECT_EQ(rig.cache.append(0, bad, v, nullptr).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(rig.cache.append(-1, k, v, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.cache.append(2, k, v, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.cache.commit().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(rig.append_layers(tokens).ok());
  ASSERT_TRUE(rig.cache.commit().ok());
  rig.model[a].insert(rig.model[a].end(), {100, 101, 102});
  rig.expect_equal_to_model();
}

// Appended again, a layer's 100 tokens would quantise a page whose keys the first append has pushed
// out of the ring.
TEST_P(KvCacheFormats, EveryLayerIsAppendedOnce) {
  CacheRig rig(cache_desc(format(), 300, 2, 300));
  const SequenceId a = rig.add();
  ASSERT_TRUE(rig.step(a, 1, 60).ok());
  std::vector<std::vector<uint32_t>> tokens(1);
  for (uint32_t t = 0; t < 100; ++t) tokens[0].push_back(100 + t);
  const std::vector<SequenceId> sequences = {a};
  const std::vector<int32_t> counts = {100};
  ASSERT_TRUE(rig.cache.reserve(sequences, counts).ok());
  const auto append = [&](int32_t layer) {
    return rig.cache.append(layer, rig.tensor(tokens, layer, true),
                            rig.tensor(tokens, layer, false), nullptr);
  };
  ASSERT_TRUE(append(1).ok());
  const Status half = rig.cache.commit();
  EXPECT_EQ(half.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(half.message().find("layers 0 (of 2)"), std::string::npos) << half.message();
  EXPECT_EQ(rig.cache.kv_len(a).value(), 60);
  for (const Status& twice : {append(1), rig.cache.mark_appended(1)}) {
    EXPECT_EQ(twice.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(twice.message().find("layer_idx is 1"), std::string::npos) << twice.message();
  }
  ASSERT_TRUE(append(0).ok()) << "the step is still open";
  ASSERT_TRUE(rig.cache.commit().ok());
  rig.model[a].insert(rig.model[a].end(), tokens[0].begin(), tokens[0].end());
  rig.expect_equal_to_model();
}

INSTANTIATE_TEST_SUITE_P(All, KvCacheFormats, testing::Range(0, 5));

TEST(KvCache, CommitNamesTheLayersWithoutTokens) {
  KvCacheDesc desc = cache_desc(cache_formats()[0], 64, 2, 100);
  desc.num_layers = 9;
  CacheRig rig(desc);
  const std::vector<SequenceId> sequences = {rig.add()};
  const std::vector<int32_t> counts = {2};
  ASSERT_TRUE(rig.cache.reserve(sequences, counts).ok());
  const auto missing = [&] { return rig.cache.commit().message(); };
  EXPECT_NE(missing().find("layers 0-8 (of 9)"), std::string::npos) << missing();
  for (const int32_t layer : {3, 7, 4}) ASSERT_TRUE(rig.cache.mark_appended(layer).ok());
  EXPECT_NE(missing().find("layers 0-2, 5-6, 8 (of 9)"), std::string::npos) << missing();
  EXPECT_EQ(rig.cache.mark_appended(9).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.cache.mark_appended(-1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(rig.cache.reserve(sequences, counts).ok());
  EXPECT_NE(missing().find("layers 0-8 (of 9)"), std::string::npos)
      << "another step: " << missing();
  for (int32_t layer = 0; layer < 9; ++layer) ASSERT_TRUE(rig.cache.mark_appended(layer).ok());
  ASSERT_TRUE(rig.cache.commit().ok());
  EXPECT_EQ(rig.cache.mark_appended(0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rig.cache.kv_len(sequences[0]).value(), 2);
}

TEST(KvCache, AMovedFromCacheIsRefused) {
  CacheRig rig(cache_desc(cache_formats()[1], 8, 2, 100));
  const SequenceId a = rig.add();
  ASSERT_TRUE(rig.step(a, 1, 5).ok());
  KvCache moved = std::move(rig.cache);
  KvCache& empty = rig.cache;  // NOLINT(bugprone-use-after-move): what is tested
  const std::vector<SequenceId> sequences = {a};
  const std::vector<int32_t> counts = {2};
  const Status refusals[] = {
      empty.set_stream(nullptr),
      empty.add_sequence().status(),
      empty.free_sequence(a),
      empty.kv_len(a).status(),
      empty.fork(a).status(),
      empty.truncate(a, 1),
      empty.reserve(sequences, counts),
      empty.append(0, {}, {}, nullptr),
      empty.mark_appended(0),
      empty.commit(),
      empty.import_dense(a, {}, {}, 0, nullptr),
  };
  for (const Status& status : refusals) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.message();
    EXPECT_NE(status.message().find("moved from"), std::string::npos) << status.message();
  }
  EXPECT_EQ(empty.desc().num_pages, 0);
  EXPECT_EQ(empty.num_free_pages(), 0);
  EXPECT_EQ(empty.memory_bytes(), 0);
  EXPECT_EQ(empty.step().batch, 0);
  EXPECT_EQ(empty.layer(0).k.data, nullptr);
  empty = std::move(moved);
  rig.expect_equal_to_model();
}

TEST(KvCache, CallsOutOfOrderAreRefused) {
  CacheRig rig(cache_desc(cache_formats()[0], 8, 2, 100));
  const SequenceId a = rig.add();
  const std::vector<SequenceId> sequences = {a};
  const std::vector<int32_t> counts = {2};
  const std::vector<std::vector<uint32_t>> tokens = {{1, 2}};
  EXPECT_EQ(rig.cache.commit().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rig.append_layers(tokens).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(rig.cache.reserve(sequences, counts).ok());
  ASSERT_TRUE(rig.cache.free_sequence(a).ok());
  EXPECT_EQ(rig.cache.step().batch, 0) << "no view of pages that were given up";
  EXPECT_EQ(rig.append_layers(tokens).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rig.cache.commit().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(rig.cache.num_free_pages(), 8);
  ASSERT_TRUE(rig.cache.reserve({}, {}).ok());
  EXPECT_TRUE(rig.cache.commit().ok());
  EXPECT_EQ(rig.cache.commit().code(), StatusCode::kFailedPrecondition);
}

TEST(KvCache, StepArraysKeepTheirAddresses) {
  CacheRig rig(cache_desc(cache_formats()[0], 64, 3, 200));
  const BatchView before = rig.cache.step();
  const SequenceId a = rig.add();
  const SequenceId b = rig.add();
  ASSERT_TRUE(rig.step({a, b}, {{1, 2, 3}, {4}}).ok());
  KvCache moved = std::move(rig.cache);
  const std::vector<SequenceId> sequences = {b, a};
  const std::vector<int32_t> counts = {40, 0};
  ASSERT_TRUE(moved.reserve(sequences, counts).ok());
  const BatchView& step = moved.step();
  EXPECT_EQ(step.kv_lens, before.kv_lens);
  EXPECT_EQ(step.query_lens, before.query_lens);
  EXPECT_EQ(step.slots, before.slots);
  EXPECT_EQ(step.block_table, before.block_table);
  EXPECT_EQ(step.block_table_stride, 13);
  EXPECT_EQ(step.batch, 2);
  EXPECT_EQ(step.kv_lens[0], 41);
  EXPECT_EQ(step.kv_lens[1], 3);
  EXPECT_EQ(step.query_lens[0], 40);
  EXPECT_EQ(step.query_lens[1], 0);
  EXPECT_EQ(step.slots[0], b);
  EXPECT_EQ(step.slots[1], a);
}

TEST(KvCache, AbsurdDescriptorsGiveAStatus) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 8, 128, 128);
  constexpr int64_t kHuge = int64_t{1} << 60;
  constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();
  const auto with = [&](int32_t layers, int64_t pages, int32_t sequences, int64_t kv_len) {
    KvCacheDesc desc = cache_desc(format, pages, sequences, kv_len);
    desc.num_layers = layers;
    return desc;
  };
  struct Case {
    KvCacheDesc desc;
    StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {with(1, kHuge, 1, 1), StatusCode::kInvalidArgument, "num_pages is 1152921504606846976"},
      {with(1, 0, 1, 1), StatusCode::kInvalidArgument, "num_pages is 0; allowed: 1 to"},
      {with(1, -1, 1, 1), StatusCode::kInvalidArgument, "num_pages is -1"},
      {with(0, 1, 1, 1), StatusCode::kInvalidArgument, "num_layers is 0"},
      {with(kMax32, 1, 1, 1), StatusCode::kInvalidArgument, "num_layers is 2147483647"},
      {with(1, 1, 0, 1), StatusCode::kInvalidArgument, "max_sequences is 0"},
      {with(1, 1, 1, 0), StatusCode::kInvalidArgument, "max_kv_len is 0"},
      {with(1, 1, 1, kHuge), StatusCode::kInvalidArgument, "max_kv_len is 1152921504606846976"},
      {with(4096, kMax32, 1, 1), StatusCode::kOutOfMemory, "pools"},
      {with(4096, kMax32, kMax32, kMax32), StatusCode::kOutOfMemory, "pools"},
      {with(1, 1, kMax32, 1), StatusCode::kOutOfMemory, "pools"},
  };
  DeviceInfo device = CacheRig::device();
  device.memory_bytes = int64_t{16} << 30;
  for (const Case& c : cases) {
    auto cache = KvCache::create(c.desc, device);
    EXPECT_EQ(cache.status().code(), c.code) << cache.status().message();
    EXPECT_NE(cache.status().message().find(c.message), std::string::npos)
        << cache.status().message();
  }
  KvCacheDesc wide = cache_desc(cache_formats()[1], 1, 1 << 20, kMax32);
  auto tables = KvCache::create(wide, device);
  EXPECT_EQ(tables.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(tables.status().message().find("block table"), std::string::npos);
  KvCacheDesc bad_format = with(1, 1, 1, 1);
  bad_format.format.page_size = 48;
  EXPECT_EQ(KvCache::create(bad_format, device).status().code(), StatusCode::kInvalidArgument);
}

TEST(KvCache, ReportsItsMemory) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kPlain, DType::kBF16, 2, 64, 16);
  CacheRig rig(cache_desc(format, 10, 2, 100));
  const int64_t pools = 2 * 10 * 16 * 2 * (64 + 64) * 2;  // layers, pages, tokens, heads, K V, bf16
  EXPECT_GE(rig.cache.memory_bytes(), pools);
  EXPECT_LE(rig.cache.memory_bytes(), pools + 2000);
  EXPECT_EQ(rig.cache.layer(2).k.data, nullptr);
  EXPECT_EQ(rig.cache.layer(-1).k.data, nullptr);
}

}  // namespace
}  // namespace longdecode
