// The host bookkeeping of a KV cache against a trivial model: a vector of tokens per sequence.
#include "cache/sequence_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace longdecode {
namespace {

KvCacheDesc make_desc(KeyEncoding keys, int32_t page_size, int64_t num_pages,
                      int32_t max_sequences = 8, int64_t max_kv_len = 1000) {
  KvCacheDesc desc;
  desc.format = KvFormat::gqa(keys, DType::kBF16, 1, 64, page_size);
  desc.num_pages = num_pages;
  desc.max_sequences = max_sequences;
  desc.max_kv_len = max_kv_len;
  return desc;
}

// A table with simulated page memory: one int per token.
class Simulation {
 public:
  explicit Simulation(const KvCacheDesc& desc)
      : desc_(desc), table(desc), memory_(desc.num_pages * desc.format.page_size, -1) {}

  CopyPage copier() {
    return [this](int32_t from, int32_t to) {
      ++num_copies;
      for (int32_t i = 0; i < page_size(); ++i) {
        memory_[to * page_size() + i] = memory_[from * page_size() + i];
      }
      return Status();
    };
  }

  Status reserve(const std::vector<SequenceId>& sequences, const std::vector<int32_t>& counts) {
    return table.reserve(sequences, counts, copier());
  }

  // Appends fresh values to every sequence of the reserved step, and to its model.
  void write_step() {
    for (size_t b = 0; b < table.step_sequences().size(); ++b) {
      const SequenceId sequence = table.step_sequences()[b];
      const int64_t kv_len = table.kv_len(sequence).value();
      for (int32_t t = 0; t < table.step_new_tokens()[b]; ++t) {
        slot(sequence, kv_len + t) = next_value_;
        written_[sequence].push_back(next_value_++);
      }
    }
    table.mark_appended();
  }
  Status commit() {
    Status status = table.commit();
    for (auto& [sequence, values] : written_) {
      model[sequence].insert(model[sequence].end(), values.begin(), values.end());
    }
    written_.clear();
    return status;
  }
  Status step(const std::vector<SequenceId>& sequences, const std::vector<int32_t>& counts) {
    if (Status status = reserve(sequences, counts); !status.ok()) return status;
    write_step();
    return commit();
  }
  void forget_step() { written_.clear(); }

  void expect_equal_to_model() {
    std::set<int32_t> used;
    for (const auto& [sequence, values] : model) {
      ASSERT_EQ(table.kv_len(sequence).value(), static_cast<int64_t>(values.size()));
      for (size_t t = 0; t < values.size(); ++t) {
        ASSERT_EQ(slot(sequence, t), values[t]) << "sequence " << sequence << " token " << t;
      }
      const auto pages = table.pages(sequence);
      used.insert(pages.begin(), pages.end());
    }
    ASSERT_EQ(table.num_free_pages(), desc_.num_pages - static_cast<int64_t>(used.size()));
  }

  int32_t page_size() const { return desc_.format.page_size; }
  int32_t& slot(SequenceId sequence, int64_t token) {
    return memory_[table.pages(sequence)[token / page_size()] * page_size() + token % page_size()];
  }

 private:
  KvCacheDesc desc_;

 public:
  SequenceTable table;
  std::map<SequenceId, std::vector<int32_t>> model;
  int32_t num_copies = 0;

 private:
  std::vector<int32_t> memory_;
  std::map<SequenceId, std::vector<int32_t>> written_;
  int32_t next_value_ = 0;
};

class Fuzz : public testing::TestWithParam<KeyEncoding> {};

TEST_P(Fuzz, EqualsAVectorOfTokensPerSequence) {
  const bool two_plane = GetParam() == KeyEncoding::kTwoPlane;
  std::mt19937 rng(two_plane ? 7 : 8);
  const auto below = [&](size_t n) { return static_cast<int32_t>(rng() % n); };
  Simulation sim(make_desc(GetParam(), two_plane ? 64 : 16, two_plane ? 20 : 40));
  std::map<SequenceId, size_t> longest;
  for (int round = 0; round < 4000; ++round) {
    std::vector<SequenceId> live;
    for (const auto& entry : sim.model) live.push_back(entry.first);
    const int32_t action = below(16);
    if (action == 0 || live.empty()) {
      if (auto added = sim.table.add(); added.ok()) {
        sim.model[added.value()] = {};
        longest[added.value()] = 0;
      } else {
        EXPECT_EQ(added.status().code(), StatusCode::kOutOfMemory);
      }
    } else if (action == 1) {
      const SequenceId victim = live[below(live.size())];
      ASSERT_TRUE(sim.table.free(victim).ok());
      sim.model.erase(victim);
    } else if (action <= 3) {
      const SequenceId parent = live[below(live.size())];
      if (auto child = sim.table.fork(parent, sim.copier()); child.ok()) {
        sim.model[child.value()] = sim.model[parent];
        longest[child.value()] = longest[parent];
      } else {
        EXPECT_EQ(child.status().code(), StatusCode::kOutOfMemory);
      }
    } else if (action <= 6) {
      const SequenceId sequence = live[below(live.size())];
      auto& tokens = sim.model[sequence];
      const int32_t count = below(two_plane ? 12 : 40);
      const bool allowed = count <= static_cast<int32_t>(tokens.size()) &&
                           (!two_plane || count == 0 ||
                            tokens.size() - count + kMaxTruncateTokens >= longest[sequence]);
      Status status = sim.table.truncate(sequence, count);
      ASSERT_EQ(status.ok(), allowed) << status.message();
      if (allowed) tokens.resize(tokens.size() - count);
    } else {
      std::vector<int32_t> counts;
      std::shuffle(live.begin(), live.end(), rng);
      live.resize(1 + below(live.size()));
      for (size_t b = 0; b < live.size(); ++b) counts.push_back(below(action == 7 ? 70 : 6));
      if (below(4) == 0) (void)sim.reserve(live, std::vector<int32_t>(live.size(), 3));
      Status status = sim.step(live, counts);
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
        sim.table.cancel_step();
      }
      for (SequenceId sequence : live) {
        longest[sequence] = std::max(longest[sequence], sim.model[sequence].size());
      }
    }
    ASSERT_NO_FATAL_FAILURE(sim.expect_equal_to_model()) << "round " << round;
  }
  EXPECT_GT(sim.num_copies, 50);
  for (const auto& entry : sim.model) ASSERT_TRUE(sim.table.free(entry.first).ok());
  EXPECT_EQ(sim.table.num_free_pages(), two_plane ? 20 : 40);
}

INSTANTIATE_TEST_SUITE_P(Encodings, Fuzz,
                         testing::Values(KeyEncoding::kPlain, KeyEncoding::kTwoPlane));

TEST(SequenceTable, ReserveThatDoesNotFitChangesNothing) {
  Simulation sim(make_desc(KeyEncoding::kPlain, 16, 4));
  const SequenceId a = sim.table.add().value();
  const SequenceId b = sim.table.add().value();
  ASSERT_TRUE(sim.step({a}, {20}).ok());  // 2 pages
  ASSERT_TRUE(sim.reserve({a, b}, {1, 16}).ok());
  EXPECT_EQ(sim.table.num_free_pages(), 1);
  Status status = sim.reserve({a, b}, {13, 17});  // 3 + 2 pages of 4
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("3 more pages; 2"), std::string::npos) << status.message();
  EXPECT_EQ(sim.table.num_free_pages(), 1);
  EXPECT_EQ(sim.table.step_state(), StepState::kReserved) << "the earlier step is still reserved";
  sim.write_step();
  ASSERT_TRUE(sim.commit().ok());
  EXPECT_EQ(sim.table.kv_len(a).value(), 21);
  EXPECT_EQ(sim.table.kv_len(b).value(), 16);
}

TEST(SequenceTable, CopyOnWriteIsCountedAndTheLastSharerKeepsThePage) {
  Simulation sim(make_desc(KeyEncoding::kPlain, 16, 4));
  const SequenceId a = sim.table.add().value();
  ASSERT_TRUE(sim.step({a}, {32}).ok());
  const SequenceId b = sim.table.fork(a, sim.copier()).value();
  const SequenceId c = sim.table.fork(a, sim.copier()).value();
  sim.model[b] = sim.model[c] = sim.model[a];
  EXPECT_EQ(sim.table.num_free_pages(), 2) << "full pages are shared";
  for (const SequenceId sequence : {a, b, c}) {
    ASSERT_TRUE(sim.table.truncate(sequence, 1).ok());
    sim.model[sequence].pop_back();
  }
  ASSERT_TRUE(sim.step({a, b, c}, {1, 1, 1}).ok()) << "two copies, the last one keeps the page";
  EXPECT_EQ(sim.num_copies, 2);
  EXPECT_EQ(sim.table.num_free_pages(), 0);
  sim.expect_equal_to_model();
  ASSERT_TRUE(sim.table.truncate(a, 16).ok());
  const SequenceId d = sim.table.fork(a, sim.copier()).value();
  ASSERT_TRUE(sim.table.truncate(d, 1).ok());
  ASSERT_TRUE(sim.reserve({b}, {0}).ok()) << "nothing is written, so nothing is copied";
  ASSERT_TRUE(sim.reserve({d}, {1}).ok());
  EXPECT_EQ(sim.table.num_free_pages(), 0);
  EXPECT_EQ(sim.reserve({d}, {2}).code(), StatusCode::kOutOfMemory);
}

TEST(SequenceTable, AReplacedReserveReturnsItsPages) {
  Simulation sim(make_desc(KeyEncoding::kPlain, 16, 4));
  const SequenceId a = sim.table.add().value();
  const SequenceId b = sim.table.add().value();
  ASSERT_TRUE(sim.reserve({a}, {64}).ok());
  EXPECT_EQ(sim.table.num_free_pages(), 0);
  ASSERT_TRUE(sim.reserve({b}, {33}).ok());
  EXPECT_EQ(sim.table.num_free_pages(), 1);
  EXPECT_EQ(sim.table.pages(a).size(), 0u);
}

TEST(SequenceTable, FreeOrTruncateOfAReservedSequenceDropsTheStep) {
  for (const bool free_it : {true, false}) {
    Simulation sim(make_desc(KeyEncoding::kPlain, 16, 8));
    const SequenceId a = sim.table.add().value();
    const SequenceId b = sim.table.add().value();
    ASSERT_TRUE(sim.step({a, b}, {5, 16}).ok());
    ASSERT_TRUE(sim.reserve({a, b}, {20, 20}).ok());
    ASSERT_TRUE((free_it ? sim.table.free(a) : sim.table.truncate(a, 1)).ok());
    EXPECT_EQ(sim.table.commit().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(sim.table.kv_len(b).value(), 16);
    EXPECT_EQ(sim.table.num_free_pages(), free_it ? 7 : 6);
  }
}

TEST(SequenceTable, RefusesBadArguments) {
  Simulation sim(make_desc(KeyEncoding::kPlain, 16, 100, 2, 50));
  const SequenceId a = sim.table.add().value();
  ASSERT_TRUE(sim.step({a}, {40}).ok());
  struct Case {
    std::vector<SequenceId> sequences;
    std::vector<int32_t> new_tokens;
    const char* message;
  };
  const Case cases[] = {
      {{a}, {}, "new_tokens has 0 elements"},
      {{-1}, {1}, "sequence is -1; allowed: 0 to 1"},
      {{2}, {1}, "sequence is 2"},
      {{1}, {1}, "sequence is 1; it is not in use"},
      {{a, a}, {1, 1}, "given twice"},
      {{a}, {-1}, "new_tokens[0] is -1"},
      {{a}, {11}, "allows 0 to 10 (max_kv_len is 50)"},
      {{a}, {2147483647}, "new_tokens[0] is 2147483647"},
  };
  for (const Case& c : cases) {
    Status status = sim.reserve(c.sequences, c.new_tokens);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(c.message), std::string::npos) << status.message();
  }
  EXPECT_TRUE(sim.step({a}, {10}).ok());
  EXPECT_EQ(sim.table.truncate(a, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sim.table.truncate(a, 51).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sim.table.free(7).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(sim.table.free(a).ok());
  EXPECT_EQ(sim.table.free(a).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sim.table.kv_len(a).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sim.table.commit().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(sim.table.add().ok() && sim.table.add().ok());
  EXPECT_EQ(sim.table.add().status().code(), StatusCode::kOutOfMemory);
}

TEST(SequenceTable, TwoPlaneTruncatesAtMostEightBelowTheLongest) {
  Simulation sim(make_desc(KeyEncoding::kTwoPlane, 64, 20));
  const SequenceId a = sim.table.add().value();
  ASSERT_TRUE(sim.step({a}, {100}).ok());
  EXPECT_EQ(sim.table.truncate(a, 9).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(sim.table.truncate(a, 5).ok());
  const SequenceId child = sim.table.fork(a, sim.copier()).value();
  for (const SequenceId sequence : {a, child}) {
    Status status = sim.table.truncate(sequence, 4);
    EXPECT_NE(status.message().find("at most 3 here"), std::string::npos) << status.message();
    EXPECT_TRUE(sim.table.truncate(sequence, 3).ok());
    ASSERT_TRUE(sim.step({sequence}, {20}).ok());  // 112
    EXPECT_TRUE(sim.table.truncate(sequence, 8).ok());
  }
}

TEST(SequenceTable, AnAbandonedStepNeverLosesUnquantisedKeysSilently) {
  Simulation sim(make_desc(KeyEncoding::kTwoPlane, 64, 20));
  const SequenceId a = sim.table.add().value();
  const SequenceId b = sim.table.add().value();
  ASSERT_TRUE(sim.reserve({a}, {500}).ok());
  sim.write_step();
  sim.forget_step();
  ASSERT_TRUE(sim.step({a, b}, {100, 100}).ok()) << "an empty sequence had nothing to lose";
  ASSERT_TRUE(sim.reserve({a, b}, {8, 200}).ok());
  ASSERT_TRUE(sim.reserve({a, b}, {8, 200}).ok()) << "nothing was appended";
  sim.write_step();
  EXPECT_EQ(sim.reserve({a}, {1}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(sim.table.fork(b, sim.copier()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(sim.table.truncate(b, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(sim.commit().ok()) << "the step is still there";
  ASSERT_TRUE(sim.reserve({a}, {8}).ok());
  sim.write_step();
  sim.forget_step();
  ASSERT_TRUE(sim.step({a}, {3}).ok()) << "8 tokens are within the lag";
  ASSERT_TRUE(sim.reserve({a, b}, {100, 100}).ok());
  sim.write_step();
  ASSERT_TRUE(sim.table.free(b).ok());
  EXPECT_EQ(sim.reserve({a}, {1}).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(sim.table.free(a).ok());
  EXPECT_EQ(sim.table.num_free_pages(), 20);
}

TEST(SequenceTable, AFailedCopyLeavesTheSequenceUsable) {
  Simulation sim(make_desc(KeyEncoding::kPlain, 16, 4));
  const SequenceId a = sim.table.add().value();
  ASSERT_TRUE(sim.step({a}, {16}).ok());
  const SequenceId b = sim.table.fork(a, sim.copier()).value();
  sim.model[b] = sim.model[a];
  ASSERT_TRUE(sim.table.truncate(b, 2).ok());
  sim.model[b].resize(14);
  const CopyPage failing = [](int32_t, int32_t) {
    return Status(StatusCode::kInternal, "copy failed");
  };
  const std::vector<SequenceId> sequences = {b};
  const std::vector<int32_t> counts = {1};
  EXPECT_EQ(sim.table.reserve(sequences, counts, failing).code(), StatusCode::kInternal);
  EXPECT_EQ(sim.table.fork(b, failing).status().code(), StatusCode::kInternal);
  sim.expect_equal_to_model();
  ASSERT_TRUE(sim.step({b}, {1}).ok());
  sim.expect_equal_to_model();
}

// An engine reserved 100 tokens ahead and ended after 10 of them.
TEST(SequenceTable, ShrinkStepGivesBackWhatFewerTokensDoNotNeed) {
  for (const KeyEncoding keys : {KeyEncoding::kPlain, KeyEncoding::kTwoPlane}) {
    Simulation sim(make_desc(keys, 64, 6));
    const SequenceId a = sim.table.add().value();
    const SequenceId b = sim.table.add().value();
    EXPECT_EQ(sim.table.shrink_step({}).code(), StatusCode::kFailedPrecondition);
    ASSERT_TRUE(sim.reserve({a, b}, {60, 50}).ok());
    sim.write_step();
    ASSERT_TRUE(sim.commit().ok());
    ASSERT_TRUE(sim.reserve({a, b}, {100, 100}).ok());
    EXPECT_EQ(sim.table.num_free_pages(), 0);
    EXPECT_EQ(sim.table.shrink_step(std::vector<int32_t>{10}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(sim.table.shrink_step(std::vector<int32_t>{10, 101}).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(sim.table.shrink_step(std::vector<int32_t>{10, -1}).code(),
              StatusCode::kInvalidArgument);
    ASSERT_TRUE(sim.table.shrink_step(std::vector<int32_t>{10, 0}).ok());
    EXPECT_EQ(sim.table.num_free_pages(), 3);  // a: 70 tokens in 2 pages, b: 50 in 1
    sim.write_step();
    ASSERT_TRUE(sim.commit().ok());
    EXPECT_EQ(sim.table.kv_len(a).value(), 70);
    EXPECT_EQ(sim.table.kv_len(b).value(), 50);
    // The recent keys are as if 10 tokens had been reserved: taking back 8 stays possible.
    EXPECT_TRUE(sim.table.truncate(a, kMaxTruncateTokens).ok());
    ASSERT_TRUE(sim.reserve({b}, {100}).ok());
  }
}

}  // namespace
}  // namespace longdecode
