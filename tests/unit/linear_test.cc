// Dequantisation and matrix products of every weight format against double arithmetic.
#include "runner/linear/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/random_weights.h"

namespace longdecode::runner {
namespace {

using tests::kAllTypes;

struct Weights {
  std::vector<uint8_t> bytes;
  Matrix matrix;

  Weights(GgmlType type, int64_t num_rows, int64_t num_cols, std::mt19937* random)
      : bytes(tests::random_weights(type, num_rows * num_cols, 0.1f, random)),
        matrix{type, num_rows, num_cols, bytes.data()} {}
  double at(int64_t row, int64_t col) const {
    return tests::weight_at(matrix.type, matrix.row(row), col);
  }
};

int64_t cols_of(GgmlType type, int64_t cols) {
  const int64_t block = ggml_type_info(type).block_weights;
  return (cols + block - 1) / block * block;
}

std::vector<float> random_x(int64_t count, std::mt19937* random) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(*random);
  if (count > 3) x[3] = 40.0f;  // an outlier in one block
  return x;
}

TEST(Dequantize, EveryTypeMatchesTheScalarDecoder) {
  std::mt19937 random(1);
  for (const GgmlType type : kAllTypes) {
    for (const int64_t cols : {1, 31, 96, 512}) {
      const Weights w(type, 3, cols_of(type, cols), &random);
      std::vector<float> row(static_cast<size_t>(w.matrix.num_cols));
      for (int64_t r = 0; r < 3; ++r) {
        dequantize_row(w.matrix, r, row.data());
        for (int64_t c = 0; c < w.matrix.num_cols; ++c) {
          const double expected = w.at(r, c);
          // Q4's d * q + m rounds twice, in terms as large as 15 d.
          EXPECT_NEAR(row[size_t(c)], expected, 1e-6 * std::max(1.0, std::abs(expected)))
              << ggml_type_info(type).name << " row " << r << " col " << c;
        }
      }
    }
  }
}

TEST(Dequantize, Bf16RoundsToNearestEven) {
  std::mt19937 random(2);
  std::vector<float> from = random_x(101, &random);
  from[0] = 1.00390625f;  // half way between two bf16 values: the even one is 1
  from[1] = -0.0f;
  from[2] = std::numeric_limits<float>::infinity();
  std::vector<uint16_t> to(from.size());
  convert_to_bf16(from.data(), int64_t(from.size()), to.data());
  for (size_t i = 0; i < from.size(); ++i) EXPECT_EQ(to[i], f32_to_bf16(from[i])) << i;
}

enum class Arithmetic { kInt16X, kFp32, kBf16 };  // of a product

Arithmetic arithmetic_of(const Weights& w) {
  return w.matrix.quantized() ? Arithmetic::kInt16X : Arithmetic::kFp32;
}

// |error| of one output, from the rounding of x (per block of 32: half of 1 / 32639 of its largest
// value; or to bf16, with the weights) and of the sums in fp32.
double tolerance(const Weights& w, int64_t row, const float* x, Arithmetic arithmetic) {
  constexpr double kEps = 0x1p-24;
  double abs_sum = 0.0;
  double rounding = 0.0;
  for (int64_t c = 0; c < w.matrix.num_cols; ++c) {
    const double weight = std::abs(w.at(row, c));
    // Q4's terms d * q and m cancel: each is at most 4 times the weights' scale.
    const double terms = weight + (w.matrix.quantized() ? 0.8 : 0.0);
    abs_sum += terms * std::abs(double(x[c]));
    if (arithmetic != Arithmetic::kInt16X) continue;
    const int64_t block = c / kBlockWeights * kBlockWeights;
    double largest = 0.0;
    for (int64_t i = block; i < block + kBlockWeights; ++i) {
      largest = std::max(largest, std::abs(double(x[i])));
    }
    rounding += weight * largest / 65278.0;
    abs_sum += terms * largest * 2e-3;  // the scale's own fp32 rounding, over the block
  }
  if (arithmetic == Arithmetic::kBf16) rounding = abs_sum * 2.0 * 0x1p-8;
  return rounding + abs_sum * kEps * std::sqrt(double(w.matrix.num_cols) + 16.0) * 4.0 + 1e-12;
}

void check(const Weights& w, const std::vector<float>& x, int64_t num_x,
           const std::vector<float>& y, Arithmetic arithmetic) {
  const int64_t cols = w.matrix.num_cols;
  for (int64_t i = 0; i < num_x; ++i) {
    for (int64_t r = 0; r < w.matrix.num_rows; ++r) {
      double expected = 0.0;
      for (int64_t c = 0; c < cols; ++c) expected += w.at(r, c) * double(x[size_t(i * cols + c)]);
      ASSERT_NEAR(y[size_t(i * w.matrix.num_rows + r)], expected,
                  tolerance(w, r, x.data() + i * cols, arithmetic))
          << ggml_type_info(w.matrix.type).name << " [" << w.matrix.num_rows << ", " << cols
          << "] x " << i << " of " << num_x << " row " << r;
    }
  }
}

std::vector<MatvecIsa> isas() {
  if (best_matvec_isa() == MatvecIsa::kPortable) return {MatvecIsa::kPortable};
  return {MatvecIsa::kPortable, MatvecIsa::kAvx512Vnni};
}

TEST(Matvec, EveryTypeIsaAndShapeMatchesDoubleProducts) {
  std::mt19937 random(7);
  for (const MatvecIsa isa : isas()) {
    MatvecInput input(isa);
    for (const GgmlType type : kAllTypes) {
      for (const int64_t want : {1, 33, 96, 128, 200, 2080}) {
        const int64_t cols = cols_of(type, want);
        const Weights w(type, 7, cols, &random);
        const std::vector<float> x = random_x(2 * cols, &random);
        std::vector<float> y(size_t(2 * 7), std::nanf(""));
        input.set(x.data(), 2, cols, x_form(type, isa));
        matvec({{{&w.matrix, y.data()}}}, input, 2);
        check(w, x, 2, y, arithmetic_of(w));
        // A part of the rows leaves the others alone.
        std::fill(y.begin(), y.end(), -7.0f);
        multiply_rows({&w.matrix, y.data()}, input, 1, 3);
        EXPECT_EQ(std::count(y.begin(), y.end(), -7.0f), 2 * 5);
      }
    }
  }
}

// Weights of one sign and x at the ends of its range: the largest integer sums there are.
TEST(Matvec, ExtremeIntegersDoNotOverflow) {
  for (const MatvecIsa isa : isas()) {
    MatvecInput input(isa);
    for (const GgmlType type : kAllTypes) {
      std::mt19937 random(8);
      Weights w(type, 1, 512, &random);
      const auto block_bytes = size_t(ggml_type_info(type).block_bytes);
      if (block_bytes <= 4) continue;
      for (const uint8_t byte : {0x00, 0x80, 0xff}) {
        for (const float sign : {-1.0f, 1.0f}) {
          const Weights scales(type, 1, 512, &random);
          w.bytes.assign(w.bytes.size(), byte);
          tests::copy_block_scales(type, scales.bytes, &w.bytes);
          w.matrix.data = w.bytes.data();
          const std::vector<float> x(512, sign * 3.0f);
          float y = 0.0f;
          input.set(x.data(), 1, 512, x_form(type, isa));
          multiply_rows({&w.matrix, &y}, input, 0, 1);
          check(w, x, 1, {y}, arithmetic_of(w));
        }
      }
    }
  }
}

// What the rounding of x costs on Gaussian data. An int8 x would cost 0.5%.
TEST(Matvec, RoundingOfXIsSmallOnAverage) {
  std::mt19937 random(9);
  for (const MatvecIsa isa : isas()) {
    const Weights w(GgmlType::kQ8_0, 256, 1024, &random);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> x(1024);
    for (float& value : x) value = normal(random);
    MatvecInput input(isa);
    input.set(x.data(), 1, 1024, x_form(GgmlType::kQ8_0, isa));
    std::vector<float> y(256);
    multiply_rows({&w.matrix, y.data()}, input, 0, 256);
    double error = 0.0;
    double size = 0.0;
    for (int64_t r = 0; r < 256; ++r) {
      double expected = 0.0;
      for (int64_t c = 0; c < 1024; ++c) expected += w.at(r, c) * double(x[size_t(c)]);
      error += std::pow(double(y[size_t(r)]) - expected, 2);
      size += expected * expected;
    }
    // A step is about 2.2 deviations / 32639, its rounding error 1 / sqrt(12) of that: 2e-5.
    EXPECT_LT(std::sqrt(error / size), 3e-5);
  }
}

TEST(Linear, EveryTypeAndShapeMatchesDoubleProducts) {
  std::mt19937 random(3);
  auto linear = Linear::create(2);
  auto gemm = Gemm::create(1);
  ASSERT_TRUE(linear.ok() && gemm.ok());
  for (const GgmlType type : kAllTypes) {
    for (const int64_t want : {1, 33, 96, 2080}) {
      const int64_t cols = cols_of(type, want);
      for (const int64_t rows : {1, 7, 65}) {
        const Weights w(type, rows, cols, &random);
        for (const int64_t num_x : {1, 3, 5}) {
          const std::vector<float> x = random_x(num_x * cols, &random);
          std::vector<float> y(size_t(num_x * rows), std::nanf(""));
          ASSERT_TRUE(linear->run({{&w.matrix, y.data()}}, x.data(), num_x, cols).ok());
          const Arithmetic many = gemm->uses_bf16() ? Arithmetic::kBf16 : Arithmetic::kFp32;
          check(w, x, num_x, y, num_x > kMaxMatvecX ? many : arithmetic_of(w));
        }
      }
    }
  }
}

TEST(Linear, SeveralProductsOfOneX) {
  std::mt19937 random(4);
  auto linear = Linear::create(3);
  ASSERT_TRUE(linear.ok());
  const Weights a(GgmlType::kQ4_1, 1, 64, &random);
  const Weights b(GgmlType::kF16, 50, 64, &random);
  const Weights c(GgmlType::kQ8_0, 13, 64, &random);
  for (const int64_t num_x : {1, 2, 6}) {
    const std::vector<float> x = random_x(num_x * 64, &random);
    std::vector<float> ya(size_t(num_x * 1)), yb(size_t(num_x * 50)), yc(size_t(num_x * 13));
    ASSERT_TRUE(linear
                    ->run({{&a.matrix, ya.data()}, {&b.matrix, yb.data()}, {&c.matrix, yc.data()}},
                          x.data(), num_x, 64)
                    .ok());
    check(a, x, num_x, ya, num_x > kMaxMatvecX ? Arithmetic::kBf16 : arithmetic_of(a));
    check(b, x, num_x, yb, num_x > kMaxMatvecX ? Arithmetic::kBf16 : arithmetic_of(b));
    check(c, x, num_x, yc, num_x > kMaxMatvecX ? Arithmetic::kBf16 : arithmetic_of(c));
  }
}

TEST(Linear, LargeMatrixGoesThroughPanels) {
  std::mt19937 random(5);
  auto linear = Linear::create(2);
  ASSERT_TRUE(linear.ok());
  const int64_t cols = 4096;  // 4 MiB panels of 512 (bf16) or 256 rows
  const Weights w(GgmlType::kQ8_0, 700, cols, &random);
  const std::vector<float> x = random_x(5 * cols, &random);
  std::vector<float> y(5 * 700);
  ASSERT_TRUE(linear->run({{&w.matrix, y.data()}}, x.data(), 5, cols).ok());
  for (const int64_t r : {0, 255, 256, 511, 512, 699}) {
    double expected = 0.0;
    for (int64_t c = 0; c < cols; ++c) expected += w.at(r, c) * double(x[size_t(4 * cols + c)]);
    EXPECT_NEAR(y[size_t(4 * 700 + r)], expected,
                tolerance(w, r, x.data() + 4 * cols, Arithmetic::kBf16));
  }
}

TEST(Linear, ZeroAndTinyInputs) {
  std::mt19937 random(6);
  auto linear = Linear::create(1);
  ASSERT_TRUE(linear.ok());
  const Weights w(GgmlType::kQ4_0, 4, 64, &random);
  std::vector<float> x(64, 0.0f);
  x[40] = std::numeric_limits<float>::denorm_min();  // 32767 / x is infinite
  std::vector<float> y(4);
  ASSERT_TRUE(linear->run({{&w.matrix, y.data()}}, x.data(), 1, 64).ok());
  for (const float value : y) EXPECT_NEAR(value, 0.0f, 1e-35f);
}

}  // namespace
}  // namespace longdecode::runner
