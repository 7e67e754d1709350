#include "benchmarks/harness/timing.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/stream_read.h"

namespace longdecode::bench {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

DeviceInfo small_cpu(int64_t cache_bytes) {
  DeviceInfo device;
  device.num_threads = 2;
  device.last_level_cache_bytes = cache_bytes;
  return device;
}

TEST(HarnessTiming, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(median({3.0, 1.0, 100.0}), 3.0);
  EXPECT_EQ(median({4.0, 1.0, 2.0, 100.0}), 3.0);
  EXPECT_EQ(median({7.0}), 7.0);
}

// Every word of the whole blocks is read once, whatever the number of threads.
TEST(HarnessTiming, StreamReadReadsEveryWholeBlock) {
  std::vector<uint64_t> words(32 * 101 + 7);
  for (size_t i = 0; i < words.size(); ++i) words[i] = 0x9e3779b97f4a7c15ull * (i + 1);
  uint64_t expected = 0;
  for (size_t i = 0; i < 32 * 101; ++i) expected ^= words[i];
  const auto num_bytes = static_cast<int64_t>(words.size() * sizeof(uint64_t));
  for (const int32_t threads : {1, 2, 3, 7}) {
    EXPECT_EQ(stream_read(words.data(), num_bytes, threads), expected) << threads << " threads";
  }
  EXPECT_EQ(stream_read(words.data(), 0, 2), 0u);
  EXPECT_EQ(stream_read(words.data(), 255, 2), 0u);
}

TEST(HarnessTiming, RowsSayHowColdTheCachesWere) {
  struct Case {
    int64_t cache_bytes, flush_bytes;
    const char* l2;
  };
  for (const Case& c : {Case{kMib, 8 * kMib, "cold"}, Case{kMib, 8 * kMib - 1, "cold-partial"},
                        Case{kMib, 0, "warm"}, Case{0, 8 * kMib, "cold-partial"}}) {
    const auto timer = make_timer(small_cpu(c.cache_bytes), Timing::kDefault, c.flush_bytes, kMib);
    ASSERT_TRUE(timer.ok()) << timer.status().message();
    EXPECT_EQ((*timer)->l2(), c.l2) << c.cache_bytes << " " << c.flush_bytes;
    EXPECT_EQ((*timer)->timing(), "wall");
  }
  EXPECT_EQ(default_flush_bytes(small_cpu(3 * kMib)), 24 * kMib);
  EXPECT_GT(default_flush_bytes(small_cpu(0)), 0);
}

TEST(HarnessTiming, SampleTimesTheCallAndPassesItsErrorOn) {
  auto timer = make_timer(small_cpu(kMib), Timing::kWall, 8 * kMib, kMib);
  ASSERT_TRUE(timer.ok()) << timer.status().message();
  int calls = 0;
  const auto time = (*timer)->sample_us([&](StreamHandle stream) -> Status {
    ++calls;
    return (*timer)->read_floor(kMib, stream);
  });
  ASSERT_TRUE(time.ok()) << time.status().message();
  EXPECT_EQ(calls, 1);
  EXPECT_GT(*time, 0.0);
  EXPECT_GT((*timer)->flush_us(), 0.0);
  const auto failed = (*timer)->sample_us([](StreamHandle) { return invalid_argument("no"); });
  EXPECT_EQ(failed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*timer)->read_floor(kMib + 1, nullptr).code(), StatusCode::kInvalidArgument);
}

TEST(HarnessTiming, TimingsOfOtherDevicesAreRefused) {
  for (const Timing timing : {Timing::kGraph, Timing::kEvents}) {
    const auto timer = make_timer(small_cpu(kMib), timing, 0, 0);
    EXPECT_EQ(timer.status().code(), StatusCode::kInvalidArgument);
  }
  DeviceInfo device;
  device.type = DeviceType::kCuda;
  EXPECT_EQ(make_timer(device, Timing::kWall, 0, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(default_reps(Timing::kGraph), 7);
  EXPECT_EQ(default_reps(Timing::kEvents), 20);
}

TEST(HarnessTiming, AvailableMemoryIsPlausible) {
  const int64_t available = available_memory_bytes();
  EXPECT_GT(available, kMib);
  EXPECT_LT(available, int64_t{1} << 50);
}

}  // namespace
}  // namespace longdecode::bench
