// What the table allows against a ring of recent keys as a device holds it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cache/sequence_table.h"

namespace longdecode {
namespace {

// The ring of recent keys as a device holds it: row j mod ring has the last key written there.
class Ring {
 public:
  explicit Ring(int32_t num_rows) : positions_(static_cast<size_t>(num_rows), -1) {}
  void write(int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row(t) = t;
  }
  bool holds(int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (row(t) != t) return false;
    }
    return true;
  }

 private:
  int64_t& row(int64_t t) { return positions_[static_cast<size_t>(t) % positions_.size()]; }
  std::vector<int64_t> positions_;
};

// An engine reserves windows, ends inside them, takes back what it launched too much, and its user
// takes back tokens, too: whatever the table allows, the keys that are needed are there, and what
// it has to allow it does.
TEST(SequenceTable, KeysOfAnEngineThatEndsInsideWindowsStayInTheRing) {
  std::mt19937 random(3);
  int32_t num_refused = 0, num_at_the_limit = 0;
  for (const int32_t page_size : {64, 128}) {
    KvCacheDesc desc;
    desc.format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 1, 64, page_size);
    desc.num_pages = 200;
    desc.max_sequences = 1;
    desc.max_kv_len = 10000;
    SequenceTable table(desc);
    Ring ring(desc.format.recent_ring_tokens());
    const SequenceId sequence = table.add().value();
    const std::vector<SequenceId> sequences = {sequence};
    int64_t longest = 0;
    while (table.kv_len(sequence).value() < 9000) {
      const int64_t kv_len = table.kv_len(sequence).value();
      const auto window = static_cast<int32_t>(1 + random() % 128);
      const auto launched = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(window));
      ASSERT_TRUE(table.reserve(sequences, std::vector<int32_t>{window}, nullptr).ok());
      ring.write(kv_len, kv_len + launched);
      ASSERT_TRUE(table.shrink_step(std::vector<int32_t>{launched}).ok());
      table.mark_appended();
      ASSERT_TRUE(table.commit().ok());
      longest = std::max(longest, kv_len + launched);
      for (const int64_t back :
           {static_cast<int64_t>(random() % 3), static_cast<int64_t>(random() % 12)}) {
        const int64_t before = table.kv_len(sequence).value();
        if (back > before) continue;
        const bool is_allowed = before - back >= longest - kMaxTruncateTokens || back == 0;
        EXPECT_EQ(table.truncate(sequence, back).ok(), is_allowed);
        num_refused += !is_allowed;
        num_at_the_limit += before - back == longest - kMaxTruncateTokens;
        const int64_t now = table.kv_len(sequence).value();
        EXPECT_EQ(now, is_allowed ? before - back : before);
        ASSERT_TRUE(ring.holds(desc.format.num_quantized_pages(now) * page_size, now)) << now;
      }
    }
  }
  EXPECT_GT(num_refused, 10);
  EXPECT_GT(num_at_the_limit, 10);
}

}  // namespace
}  // namespace longdecode
