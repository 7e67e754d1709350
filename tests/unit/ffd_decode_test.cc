// What the bits of an FFD run may depend on, its workspace, and the certified selection.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/ffd_decode.h"
#include "cpu/ffd_scan.h"
#include "ref/decode.h"
#include "tests/unit/small_cache.h"

namespace longdecode {
namespace {

using test::cpu_device;
using test::dense_desc;
using test::SmallCache;
using test::TestRun;

DecodeDesc ffd_desc(const KvFormat& format, int32_t num_q_heads, int64_t max_kv_len) {
  DecodeDesc desc = dense_desc(format, num_q_heads, max_kv_len);
  desc.method = Method::kFfd;
  // Score deviation 4: a few tokens stand out.
  desc.softmax_scale = 4.0f / std::sqrt(static_cast<float>(format.key_dim));
  desc.ffd = {.delta = 1.0f, .sink_tokens = 16, .recent_tokens = 16};
  return desc;
}

KvFormat two_plane(DType dtype, int32_t num_kv_heads, int32_t head_dim, int32_t page_size) {
  return KvFormat::gqa(KeyEncoding::kTwoPlane, dtype, num_kv_heads, head_dim, page_size);
}

std::vector<float> values(test::TestTensor& tensor) {
  std::vector<float> all;
  for (int64_t i = 0; i < tensor.count(); ++i) all.push_back(tensor.at(i));
  return all;
}

TEST(FfdDecode, BitsDependNeitherOnThreadsNorOnTheInstructionSetOfTheScan) {
  SmallCache cache(two_plane(DType::kBF16, 2, 80, 64), {5000, 77, 2100});
  TestRun run(ffd_desc(cache.layer().format, 6, 6000), cache, 3);
  ASSERT_TRUE(run.run(cpu_device(1)).ok());
  const std::vector<float> o = values(run.o);
  const std::vector<float> lse = run.lse;
  for (int32_t threads : {1, 2, 5}) {
    for (bool vnni : {false, true}) {
      DeviceInfo device = cpu_device(threads);
      device.has_avx512_vnni = vnni;
      ASSERT_TRUE(run.run(device).ok());
      EXPECT_EQ(values(run.o), o) << threads << " threads, vnni " << vnni;
      EXPECT_EQ(run.lse, lse);
    }
  }
}

TEST(FfdDecode, BitsOfASequenceDoNotDependOnItsNeighbours) {
  SmallCache cache(two_plane(DType::kF16, 1, 64, 128), {3000, 1, 3000});
  TestRun run(ffd_desc(cache.layer().format, 4, 6000), cache, 1);
  ASSERT_TRUE(run.run().ok());
  const std::vector<float> all = values(run.o);
  run.args.batch.batch = 1;
  run.args.q.shape[0] = run.args.o.shape[0] = 1;
  ASSERT_TRUE(run.run().ok());
  const std::vector<float> alone = values(run.o);
  EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + 4 * 64, all.begin()));
}

TEST(FfdDecode, StaysInsideItsWorkspaceAndLeavesItReady) {
  for (int32_t query_len : {1, 8}) {
    SmallCache cache(two_plane(DType::kBF16, 2, 96, 64), {2300, 0, 64, 700});
    TestRun run(ffd_desc(cache.layer().format, 10, 2300), cache, query_len);
    const auto kernel = cpu::make_ffd_decode(run.desc, cpu_device());
    const auto num_bytes = static_cast<size_t>(kernel->workspace_bytes());
    std::vector<uint8_t> memory(num_bytes + 80, 0xff);
    uint8_t* workspace = memory.data() + (79 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    workspace = reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(workspace) / 16 * 16);
    const std::vector<uint8_t> before(memory.data(), workspace);
    ASSERT_TRUE(kernel->init(workspace, nullptr).ok());
    std::vector<float> first;
    for (int32_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(kernel->run(run.args, workspace, nullptr).ok());
      if (i == 0) first = values(run.o);
    }
    EXPECT_EQ(values(run.o), first);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), memory.begin()));
    for (const uint8_t* byte = workspace + num_bytes; byte < memory.data() + memory.size();
         ++byte) {
      ASSERT_EQ(*byte, 0xff);
    }
  }
}

TEST(FfdDecode, CertifiedMissesNothing) {
  for (float soft_cap : {0.0f, 3.0f}) {
    for (float delta : {0.0f, 2.0f}) {
      for (int32_t page_size : {64, 128}) {
        SmallCache cache(two_plane(DType::kF32, 2, 64, page_size), {1500, 600});
        TestRun run(ffd_desc(cache.layer().format, 8, 2000), cache, 2);
        run.desc.soft_cap = soft_cap;
        run.desc.ffd.delta = delta;
        run.desc.ffd.certified = true;
        constexpr int64_t kStride = 8;
        std::vector<uint32_t> kept(2 * 2 * kStride);
        run.args.stats.kept_tiles = kept.data();
        run.args.stats.kept_tiles_stride = kStride;
        ASSERT_TRUE(run.run().ok());
        for (int32_t b = 0; b < 2; ++b) {
          const ref::PagedSource source(run.args.kv, run.args.batch, b);
          const ref::AttentionProblem problem = ref::make_problem(run.desc, run.args, b, source);
          const ref::TileSet tiles(kept.data() + b * 2 * kStride, kStride, 2, source.kv_len());
          EXPECT_EQ(ref::count_missed_exact(problem, source, run.desc.ffd, tiles), 0)
              << "soft_cap " << soft_cap << " delta " << delta << " page_size " << page_size;
        }
      }
    }
  }
}

TEST(FfdDecode, CountsWhatItReads) {
  const KvFormat format = two_plane(DType::kBF16, 1, 128, 64);
  SmallCache cache(format, {1044});  // 16 quantised pages and 20 tokens in the ring
  DecodeDesc desc = ffd_desc(format, 2, 2000);
  desc.ffd.margin_sigmas = 0.0f;  // these random keys are flat: with a margin nearly all are kept
  TestRun run(desc, cache, 1);
  int64_t scanned = -1;
  int64_t attended = -1;
  int64_t bytes = -1;
  uint32_t kept[3] = {};
  run.args.stats.tokens_scanned = &scanned;
  run.args.stats.tokens_attended = &attended;
  run.args.stats.bytes_read = &bytes;
  run.args.stats.kept_tiles = kept;
  run.args.stats.kept_tiles_stride = 3;
  ASSERT_TRUE(run.run().ok());
  const int64_t kept_quantized = std::popcount(kept[0]) + std::popcount(kept[1]);
  EXPECT_EQ(kept[0] & 1, 1u);  // the sink tile
  EXPECT_EQ(kept[2], 3u);      // the ring
  EXPECT_GT(kept_quantized, 1);
  EXPECT_LT(kept_quantized, 60);
  EXPECT_EQ(scanned, 1024 - 16);
  EXPECT_EQ(attended, 16 * kept_quantized + 20);
  const int64_t planes = 16 * format.chunk_bytes() + kept_quantized * format.residual_tile_bytes();
  EXPECT_EQ(bytes, planes + 20 * 2 * 128 + attended * 2 * 128);
}

TEST(FfdDecode, DeltaInfinityAndDenseReadEverything) {
  const KvFormat format = two_plane(DType::kF16, 2, 80, 64);
  SmallCache cache(format, {700, 5, 0});
  TestRun run(ffd_desc(format, 4, 2000), cache, 2);
  int64_t scanned[6];
  int64_t attended[6];
  std::vector<float> bound(3 * 2 * 4, -1.0f);
  std::vector<float> pseudo_max(3 * 2 * 4, -1.0f);
  run.args.stats.tokens_scanned = scanned;
  run.args.stats.tokens_attended = attended;
  run.args.stats.dropped_mass_bound = bound.data();
  run.args.stats.pseudo_max = pseudo_max.data();
  std::vector<float> o[2];
  for (Method method : {Method::kFfd, Method::kDense}) {
    run.desc.method = method;
    run.desc.ffd.delta = std::numeric_limits<float>::infinity();
    ASSERT_TRUE(run.run().ok());
    EXPECT_EQ(attended[0], 700);
    EXPECT_EQ(attended[3], 5);
    EXPECT_EQ(attended[5], 0);
    for (int64_t tokens : scanned) EXPECT_EQ(tokens, 0);
    for (float mass : bound) EXPECT_EQ(mass, 0.0f);
    EXPECT_EQ(std::isinf(pseudo_max[0]), method == Method::kDense);
    o[method == Method::kDense] = values(run.o);
  }
  for (size_t i = 0; i < o[0].size(); ++i) EXPECT_NEAR(o[0][i], o[1][i], 1e-5);
}

}  // namespace
}  // namespace longdecode
