// The generator does what the benchmark rows claim of it: planted share, score spread, share of
// tokens near the threshold, pseudo-max.
#include "benchmarks/harness/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/float_convert.h"

namespace longdecode::bench {
namespace {

constexpr int32_t kThreads = 2;

WorkloadSpec small_spec() {
  WorkloadSpec spec;
  spec.kv_len = 4096;
  spec.num_q_heads = 8;
  spec.num_kv_heads = 2;
  spec.key_dim = 64;
  spec.value_dim = 64;
  spec.softmax_scale = 0.125f;
  return spec;
}

Workload make(const WorkloadSpec& spec) {
  Result<Workload> work = make_workload(spec, kThreads);
  EXPECT_TRUE(work.ok()) << work.status().message();
  return std::move(work).value();
}

double score(const Workload& work, int32_t b, int32_t query_idx, int32_t head, int64_t token) {
  const WorkloadSpec& spec = work.spec;
  const int64_t q_at =
      b * work.q.stride[0] + query_idx * work.q.stride[1] + head * work.q.stride[2];
  const int64_t k_at =
      b * work.k.stride[0] + token * work.k.stride[1] + head / spec.group_size() * work.k.stride[2];
  double sum = 0.0;
  for (int32_t c = 0; c < spec.key_dim; ++c) {
    sum += double{load_element(work.q.data, spec.dtype, q_at + c)} *
           double{load_element(work.k.data, spec.dtype, k_at + c)};
  }
  return sum * double{spec.softmax_scale};
}

// Scores of the last query token's row of one head.
std::vector<double> last_scores(const Workload& work, int32_t b, int32_t head) {
  std::vector<double> scores;
  for (int64_t j = 0; j < work.spec.kv_len; ++j) {
    scores.push_back(score(work, b, work.spec.query_len - 1, head, j));
  }
  return scores;
}

TEST(HarnessWorkload, BackgroundScoresHaveTheStatedDeviation) {
  WorkloadSpec spec = small_spec();
  spec.kept = 0.0;
  spec.near_threshold = 0.0;
  const Workload work = make(spec);
  EXPECT_TRUE(work.planted.empty());
  for (int32_t head = 0; head < spec.num_q_heads; ++head) {
    const std::vector<double> scores = last_scores(work, 0, head);
    double sum = 0.0, squares = 0.0;
    int64_t count = 0;
    for (int64_t j = 1; j < spec.kv_len - 1; ++j, ++count) {  // without the anchors
      sum += scores[size_t(j)];
      squares += scores[size_t(j)] * scores[size_t(j)];
    }
    const double n = double(count);
    EXPECT_NEAR(sum / n, 0.0, 5 * kScoreDeviation / std::sqrt(n)) << head;
    EXPECT_NEAR(std::sqrt(squares / n), kScoreDeviation, 0.15) << head;
  }
}

TEST(HarnessWorkload, SinkAndRecentTokensSetTheThreshold) {
  for (const float delta : {0.0f, 3.0f, std::numeric_limits<float>::infinity()}) {
    WorkloadSpec spec = small_spec();
    spec.delta = delta;
    const double above = std::isinf(delta) ? kDefaultAnchorDelta : double{delta};
    const Workload work = make(spec);
    for (int32_t head = 0; head < spec.num_q_heads; ++head) {
      const std::vector<double> scores = last_scores(work, 0, head);
      double pseudo_max = -1e9;
      for (int64_t j = 0; j < spec.kv_len; ++j) {
        const bool exact = j < spec.sink_tokens || j >= spec.kv_len - spec.recent_tokens;
        if (exact) pseudo_max = std::max(pseudo_max, scores[size_t(j)]);
      }
      EXPECT_NEAR(pseudo_max - above, kThresholdScore, 0.1) << head;
      const bool from_sink = head % spec.group_size() % 2 == 0;
      EXPECT_NEAR(scores[size_t(from_sink ? 0 : spec.kv_len - 1)], pseudo_max, 1e-6) << head;
    }
  }
}

// Groups of a kv head that hold a token at or above the threshold for some head of its group.
std::set<int64_t> groups_above(const Workload& work, int32_t b, int32_t kv_head) {
  const WorkloadSpec& spec = work.spec;
  const GroupRange range = selectable_groups(spec);
  std::set<int64_t> groups;
  for (int32_t i = 0; i < spec.group_size(); ++i) {
    const std::vector<double> scores = last_scores(work, b, kv_head * spec.group_size() + i);
    for (int64_t j = range.first * kTileTokens; j < range.last * kTileTokens; ++j) {
      if (scores[size_t(j)] >= kThresholdScore + 1e-2) groups.insert(j / kTileTokens);
    }
  }
  return groups;
}

TEST(HarnessWorkload, TheStatedShareOfGroupsHoldsOneHit) {
  for (const double kept : {0.02, 0.25, 1.0}) {
    WorkloadSpec spec = small_spec();
    spec.kept = kept;
    const Workload work = make(spec);
    const GroupRange range = selectable_groups(spec);
    std::map<std::pair<int32_t, int64_t>, int> hits;
    std::map<int32_t, int> served;
    for (const PlantedToken& token : work.planted) {
      const int32_t head = token.kv_head_idx * spec.group_size() + token.head_in_group;
      EXPECT_NEAR(score(work, 0, 0, head, token.token), double{token.score}, 0.05);
      if (!token.is_hit) continue;
      EXPECT_GE(token.score, kThresholdScore + kHitMin);
      EXPECT_LE(token.score, kThresholdScore + kHitMax);
      ++hits[{token.kv_head_idx, token.token / kTileTokens}];
      ++served[head];
    }
    for (const auto& [group, count] : hits) EXPECT_EQ(count, 1);
    EXPECT_EQ(int32_t(served.size()), spec.num_q_heads) << "every query head has a hit";
    const double expected = kept * double(range.size());
    for (int32_t kv_head = 0; kv_head < spec.num_kv_heads; ++kv_head) {
      EXPECT_NEAR(double(groups_above(work, 0, kv_head).size()), expected, 1.0) << kept;
    }
  }
}

TEST(HarnessWorkload, TheStatedShareOfTokensLiesJustBelowTheThreshold) {
  for (const double kept : {0.0, 0.005, 0.5}) {
    WorkloadSpec spec = small_spec();
    spec.kept = kept;
    spec.near_threshold = 0.02;
    const Workload work = make(spec);
    for (int32_t kv_head = 0; kv_head < spec.num_kv_heads; ++kv_head) {
      std::set<int64_t> near;
      for (int32_t i = 0; i < spec.group_size(); ++i) {
        const std::vector<double> scores = last_scores(work, 0, kv_head * spec.group_size() + i);
        for (int64_t j = 0; j < spec.kv_len; ++j) {
          const double distance = scores[size_t(j)] - kThresholdScore;
          if (std::abs(distance) <= kNearWidth + 0.05) near.insert(j);
        }
      }
      const double share = double(near.size()) / double(spec.kv_len);
      EXPECT_NEAR(share, 0.02, 1e-3) << kept;
    }
  }
}

TEST(HarnessWorkload, ClusteredHitsComeInRunsAndOneKvHeadHasHalf) {
  WorkloadSpec spec = small_spec();
  spec.kind = WorkloadKind::kClustered;
  spec.kv_len = 16384;
  spec.num_kv_heads = 4;
  spec.kept = 0.1;
  const Workload work = make(spec);
  std::vector<std::set<int64_t>> groups(4);
  for (const PlantedToken& token : work.planted) {
    if (token.is_hit) groups[size_t(token.kv_head_idx)].insert(token.token / kTileTokens);
  }
  const double all = 0.1 * 4 * double(selectable_groups(spec).size());
  double sum = 0.0;
  for (const auto& head : groups) {
    sum += double(head.size());
    int64_t runs = 0;
    for (const int64_t group : head) runs += head.count(group - 1) == 0 ? 1 : 0;
    EXPECT_LE(runs, int64_t(head.size()) / kClusterGroups + 1);
  }
  EXPECT_NEAR(sum, all, 1.0);
  EXPECT_NEAR(double(groups[0].size()), all / 2, 1.0);
}

TEST(HarnessWorkload, ClusteredWithEverythingKeptIsEverything) {
  WorkloadSpec spec = small_spec();
  spec.kind = WorkloadKind::kClustered;
  for (const double kept : {0.8, 1.0}) {
    spec.kept = kept;
    const Workload work = make(spec);
    int64_t hits = 0;
    for (const PlantedToken& token : work.planted) hits += token.is_hit ? 1 : 0;
    EXPECT_EQ(hits, std::llround(kept * double(2 * selectable_groups(spec).size())));
  }
}

TEST(HarnessWorkload, TheSeedAloneDecidesTheData) {
  WorkloadSpec spec = small_spec();
  spec.batch = 2;
  spec.query_len = 3;
  const auto bytes = [](const Workload& work) {
    const WorkloadSpec& s = work.spec;
    const auto copy = [&](const HostBuffer& data, int64_t elements) {
      return std::vector<uint8_t>(data.get(), data.get() + elements * dtype_bytes(s.dtype));
    };
    return std::make_tuple(
        copy(work.q_data, int64_t{s.batch} * s.query_len * s.num_q_heads * s.key_dim),
        copy(work.k_data, s.batch * s.kv_len * s.num_kv_heads * s.key_dim),
        copy(work.v_data, s.batch * s.kv_len * s.num_kv_heads * s.value_dim));
  };
  const auto one_thread = make_workload(spec, 1);
  ASSERT_TRUE(one_thread.ok());
  EXPECT_EQ(bytes(*one_thread), bytes(make(spec)));
  spec.seed = 2;
  EXPECT_NE(bytes(*one_thread), bytes(make(spec)));
}

TEST(HarnessWorkload, EveryDtypeAndMlaWork) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    WorkloadSpec spec = small_spec();
    spec.op = Op::kMla;
    spec.dtype = dtype;
    spec.kv_len = 600;
    spec.num_q_heads = 16;
    spec.num_kv_heads = 1;
    spec.key_dim = kMlaKeyDim;
    spec.value_dim = kMlaValueDim;
    spec.softmax_scale = 0.0722f;
    const Workload work = make(spec);
    EXPECT_EQ(work.v.data, nullptr);
    EXPECT_NEAR(score(work, 0, 0, 0, 0), kThresholdScore + 5.0, 0.1);
  }
}

TEST(HarnessWorkload, ShortSequencesHaveNothingToSelect) {
  for (const int64_t kv_len : {1, 15, 128, 300}) {
    WorkloadSpec spec = small_spec();
    spec.kv_len = kv_len;
    const Workload work = make(spec);
    EXPECT_EQ(work.planted.empty(), selectable_groups(spec).size() == 0);
  }
}

TEST(HarnessWorkload, SelectableGroupsAreQuantisedAndNeitherSinkNorRecent) {
  WorkloadSpec spec = small_spec();
  spec.page_size = 128;
  spec.sink_tokens = 17;
  spec.recent_tokens = 0;
  EXPECT_EQ(selectable_groups(spec).first, 2);
  EXPECT_EQ(selectable_groups(spec).last, (4096 - 128) / 16);  // (4096 - 8) / 128 = 31 pages
  spec.page_size = 64;
  EXPECT_EQ(selectable_groups(spec).last, (4096 - 64) / 16);
  spec.recent_tokens = 100;
  spec.query_len = 6;  // recent from 4096 - 6 + 1 - 100 on
  EXPECT_EQ(selectable_groups(spec).last, 3991 / 16);
}

TEST(HarnessWorkload, BadSpecsAreRefused) {
  const auto refused = [](auto change) {
    WorkloadSpec spec = small_spec();
    change(spec);
    return make_workload(spec, kThreads).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.batch = 0; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.query_len = 9; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.kv_len = 0; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.num_q_heads = 7; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.num_kv_heads = 0; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.kept = 1.5; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.kept = std::nan(""); }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.near_threshold = -0.1; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.softmax_scale = 0.0f; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.page_size = 0; }));
  EXPECT_TRUE(refused([](WorkloadSpec& s) { s.sink_tokens = -1; }));
}

// Tokens of a sample, repeated: the last one is the sample's last.
TEST(Workload, DumpIsRepeatedAndEndsWhereTheSampleEnds) {
  auto sample = std::make_shared<KvSample>();
  *sample = {"made up", 3, 40, 4, 2, 8, {}, {}, {}};
  for (int64_t i = 0; i < 40 * 4 * 8; ++i) sample->q.push_back(static_cast<float>(i % 251));
  for (int64_t i = 0; i < 40 * 2 * 8; ++i) {
    sample->k.push_back(static_cast<float>(i % 241));
    sample->v.push_back(static_cast<float>(i % 239));
  }
  WorkloadSpec spec;
  spec.kind = WorkloadKind::kDump;
  spec.kv_len = 100;
  spec.query_len = 2;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.key_dim = spec.value_dim = 8;
  spec.softmax_scale = 0.5f;
  spec.sample = sample;
  const Workload work = make(spec);
  EXPECT_TRUE(work.planted.empty());
  const auto row = [&](const TensorView& view, int64_t token, int64_t c) {
    return load_element(view.data, spec.dtype, token * view.stride[1] + c);
  };
  for (const auto& [token, from] : {std::pair{99, 39}, {60, 0}, {59, 39}, {0, 20}}) {
    for (int64_t c = 0; c < 16; ++c) {
      EXPECT_EQ(row(work.k, token, c), sample->k[static_cast<size_t>(from * 16 + c)]);
      EXPECT_EQ(row(work.v, token, c), sample->v[static_cast<size_t>(from * 16 + c)]);
    }
  }
  EXPECT_EQ(row(work.q, 0, 5), sample->q[38 * 32 + 5]);
  EXPECT_EQ(row(work.q, 1, 5), sample->q[39 * 32 + 5]);

  spec.num_q_heads = 2;
  EXPECT_FALSE(make_workload(spec, kThreads).ok());
  spec.num_q_heads = 4;
  spec.sample = nullptr;
  EXPECT_FALSE(make_workload(spec, kThreads).ok());
}

}  // namespace
}  // namespace longdecode::bench
