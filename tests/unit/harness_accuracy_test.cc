// The columns beside the time: errors, missed tokens, bytes; on caches filled by the real append.
#include "benchmarks/harness/accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float_convert.h"
#include "benchmarks/harness/attention_bench.h"
#include "benchmarks/harness/cache_fill.h"
#include "ops/backends.h"
#include "ref/decode.h"
#include "ref/ffd.h"
#include "ref/kv_source.h"

namespace longdecode::bench {
namespace {

ShapeSpec small_shape() {
  ShapeSpec shape;
  shape.batch = 2;
  shape.kv_len = 2000;
  shape.num_q_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  shape.page_size = 64;
  shape.ffd.sink_tokens = 32;
  shape.ffd.recent_tokens = 32;
  return shape;
}

WorkloadSpec workload_of(const ShapeSpec& shape, double kept) {
  WorkloadSpec spec;
  spec.batch = shape.batch;
  spec.query_len = shape.query_len;
  spec.kv_len = shape.kv_len;
  spec.num_q_heads = shape.num_q_heads;
  spec.num_kv_heads = shape.num_kv_heads;
  spec.key_dim = shape.head_dim;
  spec.value_dim = shape.head_dim;
  spec.page_size = shape.page_size;
  spec.softmax_scale = decode_desc(shape, Method::kDense).softmax_scale;
  spec.delta = shape.ffd.delta;
  spec.sink_tokens = shape.ffd.sink_tokens;
  spec.recent_tokens = shape.ffd.recent_tokens;
  spec.kept = kept;
  return spec;
}

// A workload in a cache, and the reference's output for it as a kernel's would stand in memory.
class Fixture {
 public:
  Fixture(const ShapeSpec& shape, Method method, double kept)
      : desc(decode_desc(shape, method)),
        device(detect_device(DeviceType::kCpu).value()),
        work(make_workload(workload_of(shape, kept), 2).value()),
        cache(make_filled_cache(work, desc.format, backend(), device).value()),
        output(size_t(shape.batch) * size_t(shape.query_len * shape.num_q_heads * shape.head_dim)) {
    args.query_len = shape.query_len;
    args.q = work.q;
    args.o =
        TensorView::contiguous(output.data(), DType::kBF16,
                               {shape.batch, shape.query_len, shape.num_q_heads, shape.head_dim});
    args.kv = cache.layer(0);
    args.batch = cache.step();
    dense = dense_reference(work, desc, args);
  }
  static const Backend& backend() { return *find_backend(DeviceType::kCpu).value(); }

  // Tiles of the reference's own 2-bit selection.
  std::vector<ref::TileSet> select() const {
    std::vector<ref::TileSet> tiles;
    for (int32_t b = 0; b < work.spec.batch; ++b) {
      tiles.push_back(ref::decode(desc, args, b).tiles);
    }
    return tiles;
  }
  void write_output(const std::vector<ref::TileSet>& tiles) {
    for (int32_t b = 0; b < work.spec.batch; ++b) {
      const ref::TileSet* kept = tiles.empty() ? nullptr : &tiles[size_t(b)];
      const auto o = ref::decode(desc, args, b, kept).attention.o;
      for (size_t i = 0; i < o.size(); ++i) {
        output[size_t(b) * o.size() + i] = f32_to_bf16(static_cast<float>(o[i]));
      }
    }
  }

  DecodeDesc desc;
  DeviceInfo device;
  Workload work;
  KvCache cache;
  std::vector<uint16_t> output;
  DecodeArgs args;
  std::vector<ref::AttentionOutput> dense;
};

TEST(HarnessAccuracy, RightOutputsHaveRoundingErrorOnly) {
  Fixture dense(small_shape(), Method::kDense, 0.01);
  dense.write_output({});
  const Accuracy plain = measure_accuracy(dense.desc, dense.args, {}, dense.dense);
  EXPECT_LT(plain.max_rel_err, 0x1p-8);
  EXPECT_EQ(plain.max_rel_err, plain.err_dense);
  EXPECT_EQ(plain.missed_exact, 0.0);

  Fixture ffd(small_shape(), Method::kFfd, 0.05);
  const std::vector<ref::TileSet> tiles = ffd.select();
  ffd.write_output(tiles);
  const Accuracy sparse = measure_accuracy(ffd.desc, ffd.args, tiles, ffd.dense);
  EXPECT_LT(sparse.max_rel_err, 0x1p-8);
  EXPECT_GT(sparse.err_dense, sparse.max_rel_err) << "what was dropped must show";
  EXPECT_LT(sparse.err_dense, 0.3);
  EXPECT_EQ(sparse.missed_exact, 0.0);
}

TEST(HarnessAccuracy, WrongOutputsAreReported) {
  Fixture run(small_shape(), Method::kDense, 0.01);
  run.write_output({});
  run.output[5] = f32_to_bf16(bf16_to_f32(run.output[5]) + 1.0f);
  EXPECT_GT(measure_accuracy(run.desc, run.args, {}, run.dense).max_rel_err, 0.1);
  run.output.back() = f32_to_bf16(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(measure_accuracy(run.desc, run.args, {}, run.dense).max_rel_err,
            std::numeric_limits<double>::infinity());
}

TEST(HarnessAccuracy, ATileThatWasDroppedWronglyIsMissed) {
  Fixture run(small_shape(), Method::kFfd, 0.05);
  std::vector<ref::TileSet> tiles = run.select();
  int64_t hits = 0;
  for (const PlantedToken& token : run.work.planted) hits += token.is_hit ? 1 : 0;
  for (const PlantedToken& token : run.work.planted) {
    if (!token.is_hit) continue;
    tiles[size_t(token.batch_idx)].at(token.kv_head_idx, token.token / kTileTokens) = 0;
    break;
  }
  run.write_output(tiles);
  const Accuracy accuracy = measure_accuracy(run.desc, run.args, tiles, run.dense);
  EXPECT_NEAR(accuracy.missed_exact, 1.0 / double(hits), 0.5 / double(hits));
  EXPECT_LT(accuracy.max_rel_err, 0x1p-8) << "the kernel did what its tiles say";
}

// The 2-bit selection keeps what was planted, and little else.
TEST(HarnessAccuracy, SelectionKeepsAboutThePlantedShare) {
  for (const double kept : {0.0, 0.05, 0.3, 1.0}) {
    ShapeSpec shape = small_shape();
    shape.batch = 1;
    shape.kv_len = 8192;
    shape.near_threshold = 0.01;
    const Fixture run(shape, Method::kFfd, kept);
    const ref::TileSet tiles = run.select()[0];
    const GroupRange range = selectable_groups(run.work.spec);
    int64_t count = 0;
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      for (int64_t tile = range.first; tile < range.last; ++tile) {
        count += tiles.has(head, tile) ? 1 : 0;
      }
    }
    const double share = double(count) / double(shape.num_kv_heads * range.size());
    EXPECT_GE(share, kept - 0.002) << kept;
    EXPECT_LE(share, kept + 0.012) << kept;
  }
}

TEST(HarnessAccuracy, ACopiedLayerIsTheLayer) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    const Fixture run(small_shape(), method, 0.05);
    const auto host = HostLayer::create(run.args.kv, run.args.batch, Fixture::backend(), run.device,
                                        /*always_copy=*/true);
    ASSERT_TRUE(host.ok()) << host.status().message();
    const ref::PagedSource original(run.args.kv, run.args.batch, 1);
    const ref::PagedSource copy(host->layer(), host->step(), 1);
    std::vector<double> a(64), b(64);
    for (int64_t token = 0; token < original.kv_len(); token += 7) {
      original.key(1, token, a.data());
      copy.key(1, token, b.data());
      EXPECT_EQ(a, b) << token;
      original.value(1, token, a.data());
      copy.value(1, token, b.data());
      EXPECT_EQ(a, b) << token;
    }
  }
}

TEST(HarnessAccuracy, NecessaryBytesByHand) {
  ShapeSpec shape = small_shape();
  const int64_t q_and_o = 4 * (64 + 64) * 2;
  const DecodeDesc dense = decode_desc(shape, Method::kDense);
  EXPECT_EQ(necessary_bytes(dense, 1, {2000}, {}), 2 * 2000 * (64 + 64) * 2 + q_and_o);
  EXPECT_EQ(necessary_bytes(dense, 3, {2000, 2000}, {}),
            2 * (2 * 2000 * (64 + 64) * 2 + 3 * q_and_o));

  // 2000 tokens: (2000 - 8) / 64 = 31 pages quantised, 16 tokens in the ring.
  const DecodeDesc ffd = decode_desc(shape, Method::kFfd);
  ref::TileSet tiles(2, 2000);
  tiles.at(0, 124) = tiles.at(1, 124) = 1;  // the ring
  const int64_t scanned = 2 * (31 * (64 * 64 / 4 + 4 * 64) + 16 * (64 + 64) * 2) + q_and_o;
  EXPECT_EQ(necessary_bytes(ffd, 1, {2000}, {tiles}), scanned);
  tiles.at(1, 7) = 1;
  EXPECT_EQ(necessary_bytes(ffd, 1, {2000}, {tiles}), scanned + 16 * (64 + 64 * 2));

  shape.op = Op::kMla;
  const DecodeDesc mla = decode_desc(shape, Method::kDense);
  EXPECT_EQ(necessary_bytes(mla, 1, {100}, {}), 100 * 576 * 2 + 4 * (576 + 512) * 2);
}

}  // namespace
}  // namespace longdecode::bench
