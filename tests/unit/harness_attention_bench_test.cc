// The whole measurement on small shapes with the real CPU kernels.
#include "benchmarks/harness/attention_bench.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace longdecode::bench {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

DeviceInfo cpu() {
  DeviceInfo device = detect_device(DeviceType::kCpu).value();
  device.num_threads = 2;
  return device;
}

BenchOptions quick_options() {
  BenchOptions options;
  options.num_reps = 3;
  options.flush_bytes = 4 * kMib;
  return options;
}

ShapeSpec small_shape() {
  ShapeSpec shape;
  shape.kv_len = 3000;
  shape.num_q_heads = 6;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  shape.page_size = 64;
  shape.kept = {0.05, 1.0};
  return shape;
}

std::vector<BenchRow> run(std::vector<ShapeSpec> shapes) {
  auto bench = AttentionBench::create(std::move(shapes), cpu(), quick_options());
  EXPECT_TRUE(bench.ok()) << bench.status().message();
  if (!bench.ok()) return {};
  auto rows = bench->run();
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  return rows.ok() ? std::move(rows).value() : std::vector<BenchRow>();
}

void expect_sane(const BenchRow& row) {
  EXPECT_TRUE(row.valid()) << row.kernel << ": " << row.max_rel_err;
  EXPECT_GT(row.time_us_min, 0.0);
  EXPECT_LE(row.time_us_min, row.time_us);
  EXPECT_LE(row.time_us, row.time_us_max);
  EXPECT_GT(row.read_floor_us, 0.0);
  EXPECT_GT(row.gbps(), 0.0);
  EXPECT_EQ(row.timing, "wall");
  EXPECT_LE(row.missed_exact, 0.01);
}

TEST(HarnessAttentionBench, DenseIsOneRowPerShapeAndFfdOnePerKeptShare) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    ShapeSpec shape = small_shape();
    shape.dtype = dtype;
    shape.query_len = dtype == DType::kBF16 ? 3 : 1;
    shape.batch = dtype == DType::kF16 ? 2 : 1;
    const std::vector<BenchRow> rows = run({shape});
    ASSERT_EQ(rows.size(), 3u);
    for (const BenchRow& row : rows) expect_sane(row);
    EXPECT_EQ(rows[0].method, Method::kDense);
    EXPECT_FALSE(rows[0].kept_planted.has_value());
    EXPECT_EQ(rows[0].kept_fraction, 1.0);
    EXPECT_EQ(rows[1].kept_planted, 0.05);
    // 128 sink tokens, 128 recent ones with their tiles, and what was planted in the rest.
    EXPECT_GT(rows[1].kept_fraction, 256.0 / 3000 + 0.03);
    EXPECT_LT(rows[1].kept_fraction, 256.0 / 3000 + 0.12);
    EXPECT_GT(rows[1].err_dense, 0.0);
    EXPECT_EQ(rows[2].kept_planted, 1.0);
    EXPECT_GT(rows[2].kept_fraction, 0.99);
    EXPECT_LT(rows[1].necessary_bytes, rows[2].necessary_bytes);
    EXPECT_LT(rows[2].necessary_bytes, rows[0].necessary_bytes);
  }
}

TEST(HarnessAttentionBench, MlaIsDense) {
  ShapeSpec shape = small_shape();
  shape.op = Op::kMla;
  shape.methods = {Method::kDense};
  shape.num_q_heads = 16;
  shape.kv_len = 500;
  const std::vector<BenchRow> rows = run({shape});
  ASSERT_EQ(rows.size(), 1u);
  expect_sane(rows[0]);
  EXPECT_EQ(rows[0].shape.head_dim, kMlaKeyDim);
  EXPECT_EQ(rows[0].shape.num_kv_heads, 1);
}

TEST(HarnessAttentionBench, BadRequestsAreRefusedBeforeAnyWork) {
  const auto message = [](auto change) {
    ShapeSpec shape = small_shape();
    BenchOptions options = quick_options();
    change(shape, options);
    const auto bench = AttentionBench::create({shape}, cpu(), options);
    EXPECT_FALSE(bench.ok());
    return bench.status().message();
  };
  EXPECT_NE(message([](ShapeSpec& s, BenchOptions&) { s.batch = 0; }).find("batch is 0"),
            std::string::npos);
  EXPECT_NE(message([](ShapeSpec& s, BenchOptions&) {
              s.kept = {0.1, 2.0};
            }).find("kept is 2"),
            std::string::npos);
  EXPECT_NE(message([](ShapeSpec& s, BenchOptions&) { s.page_size = 32; }).find("page_size is 32"),
            std::string::npos);
  EXPECT_NE(message([](ShapeSpec& s, BenchOptions&) { s.op = Op::kMla; }).find("latent"),
            std::string::npos);
  EXPECT_NE(message([](ShapeSpec&, BenchOptions& o) { o.num_reps = 0; }).find("reps is 0"),
            std::string::npos);
  EXPECT_NE(message([](ShapeSpec&, BenchOptions& o) { o.flush_bytes = -1; }).find("flush_bytes"),
            std::string::npos);
  EXPECT_NE(
      message([](ShapeSpec&, BenchOptions& o) { o.flush_bytes = kMib << 24; }).find("available"),
      std::string::npos);
  EXPECT_NE(message([](ShapeSpec& s, BenchOptions&) { s.kv_len = 1 << 30; }).find("MiB"),
            std::string::npos);
}

}  // namespace
}  // namespace longdecode::bench
