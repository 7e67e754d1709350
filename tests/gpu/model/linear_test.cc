// Products on CUDA against fp64: the kernel of 1..8 tokens and Gemm.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cuda/model/gemm.h"
#include "tests/gpu/model/arrays.h"

namespace longdecode::testing {
namespace {

using cuda::Gemm;
using cuda::LinearArgs;
using cuda::LinearOutput;
using gpu_test::check_cuda;
using gpu_test::check_status;

struct Shape {
  int64_t rows, cols;
};

// One row's product of one token.
struct Product {
  double value = 0.0;
  double size = 0.0;     // sum of |w x|
  double squares = 0.0;  // sum of (w x)^2
};

struct Problem {
  Shape shape;
  int32_t tokens;
  bool normalise;
  std::vector<uint16_t> weight, x_bf16;
  std::vector<float> x, norm_weight, bias;
  static constexpr float kEps = 1e-5f;

  Problem(const Shape& s, int32_t num_tokens, bool with_norm)
      : shape(s),
        tokens(num_tokens),
        normalise(with_norm),
        weight(to_bf16(normal_floats(s.rows * s.cols, 0.05f, 1))),
        x(normal_floats(num_tokens * s.cols, 3.0f, 2)),
        norm_weight(normal_floats(s.cols, 1.0f, 3)),
        bias(normal_floats(s.rows, 1.0f, 4)) {
    x_bf16 = to_bf16(x);
  }

  // What enters the product, without its rounding to bf16.
  std::vector<double> input(int64_t token) const {
    std::vector<double> values(static_cast<size_t>(shape.cols));
    double squares = 0.0;
    for (int64_t c = 0; c < shape.cols; ++c) {
      const size_t i = static_cast<size_t>(token * shape.cols + c);
      values[size_t(c)] = normalise ? x[i] : bf16_to_f32(x_bf16[i]);
      squares += values[size_t(c)] * values[size_t(c)];
    }
    if (!normalise) return values;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(shape.cols) + kEps);
    for (int64_t c = 0; c < shape.cols; ++c) values[size_t(c)] *= scale * norm_weight[size_t(c)];
    return values;
  }

  Product product(const std::vector<double>& values, int64_t row, int64_t cols) const {
    Product p;
    for (int64_t c = 0; c < cols; ++c) {
      const double term =
          bf16_to_f32(weight[static_cast<size_t>(row * shape.cols + c)]) * values[size_t(c)];
      p.value += term;
      p.size += std::fabs(term);
      p.squares += term * term;
    }
    return p;
  }

  // Rounding of the normalised input: independent errors of at most 2^-8 relative, 6 deviations of
  // their sum. fp32 sums: 2^-18 of the sum of magnitudes (partial sums of at most 150 terms are
  // each rounded by 2^-24 to 2^-23 of that, and all magnitudes never add up).
  double tolerance(const Product& p) const {
    return (normalise ? 6.0 / std::sqrt(3.0) * 0x1p-8 * std::sqrt(p.squares) : 0.0) +
           0x1p-18 * p.size;
  }
};

int64_t outputs_per_token(const Problem& problem, LinearOutput output) {
  return output == LinearOutput::kSiluUpBf16 ? problem.shape.rows / 2 : problem.shape.rows;
}

bool is_bf16(LinearOutput output) {
  return output == LinearOutput::kStoreBf16 || output == LinearOutput::kSiluUpBf16;
}

using RunProduct = std::function<Status(const Problem&, LinearOutput, bool with_bias, void* y)>;

Status run_linear(const Problem& problem, LinearOutput output, bool with_bias, void* y) {
  const DeviceArray<uint16_t> weight(problem.weight), x_bf16(problem.x_bf16);
  const DeviceArray<float> x(problem.x), norm_weight(problem.norm_weight), bias(problem.bias);
  LinearArgs args;
  args.weight = weight.data();
  if (with_bias) args.bias = bias.data();
  if (problem.normalise) {
    args.x_f32 = x.data();
    args.norm_weight = norm_weight.data();
    args.norm_eps = Problem::kEps;
  } else {
    args.x_bf16 = x_bf16.data();
  }
  args.output = output;
  args.y = y;
  args.num_rows = problem.shape.rows;
  args.num_cols = problem.shape.cols;
  args.num_tokens = problem.tokens;
  const Status status = cuda::linear(args, cuda_device(), nullptr);
  check_cuda(cudaDeviceSynchronize(), "linear");
  return status;
}

// The outputs as floats, before which y held `before` (kAddF32) or poison.
std::vector<float> outputs_of(const RunProduct& run, const Problem& problem, LinearOutput output,
                              bool with_bias, const std::vector<float>& before) {
  const int64_t count = problem.tokens * outputs_per_token(problem, output);
  if (is_bf16(output)) {
    const DeviceArray<uint16_t> y(count);
    check_status(run(problem, output, with_bias, y.data()), "run");
    EXPECT_TRUE(y.intact());
    return to_floats(y.get());
  }
  DeviceArray<float> y(count);
  if (output == LinearOutput::kAddF32) y.set(before);
  check_status(run(problem, output, with_bias, y.data()), "run");
  EXPECT_TRUE(y.intact());
  return y.get();
}

// Outputs that are out of tolerance against products of the first `cols` columns.
int64_t count_wrong(const Problem& problem, LinearOutput output, bool with_bias,
                    const std::vector<float>& before, const std::vector<float>& result,
                    int64_t cols) {
  const int64_t width = outputs_per_token(problem, output);
  int64_t wrong = 0;
  for (int64_t token = 0; token < problem.tokens; ++token) {
    const std::vector<double> values = problem.input(token);
#pragma omp parallel for reduction(+ : wrong)
    for (int64_t i = 0; i < width; ++i) {
      const auto with = [&](int64_t row) {
        Product p = problem.product(values, row, cols);
        if (with_bias) p.value += problem.bias[static_cast<size_t>(row)];
        return p;
      };
      const size_t index = static_cast<size_t>(token * width + i);
      double expected, tolerance;
      if (output == LinearOutput::kSiluUpBf16) {
        const int64_t row = i / 8 * 16 + i % 8;
        const Product gate = with(row), up = with(row + 8);
        expected = silu(gate.value) * up.value;
        // |silu'| <= 1.1; the device's exponential is good to 2^-20.
        tolerance =
            1.1 * problem.tolerance(gate) * std::fabs(up.value) +
            (std::fabs(silu(gate.value)) + 1.1 * problem.tolerance(gate)) * problem.tolerance(up) +
            0x1p-20 * std::fabs(expected);
      } else {
        const Product p = with(i);
        expected = p.value;
        tolerance = problem.tolerance(p) + 0x1p-24 * std::fabs(expected);
        if (output == LinearOutput::kAddF32) expected += before[index];
      }
      if (is_bf16(output)) tolerance += 0x1p-8 * (std::fabs(expected) + tolerance);
      if (!(std::fabs(result[index] - expected) <= tolerance)) ++wrong;
    }
  }
  return wrong;
}

void check(const RunProduct& run, const Problem& problem, LinearOutput output, bool with_bias) {
  const std::vector<float> before = normal_floats(problem.tokens * problem.shape.rows, 1.0f, 5);
  const std::vector<float> result = outputs_of(run, problem, output, with_bias, before);
  EXPECT_EQ(count_wrong(problem, output, with_bias, before, result, problem.shape.cols), 0)
      << problem.shape.rows << " x " << problem.shape.cols << ", tokens " << problem.tokens
      << ", norm " << problem.normalise << ", output " << static_cast<int>(output);
}

constexpr LinearOutput kAllOutputs[] = {LinearOutput::kStoreF32, LinearOutput::kStoreBf16,
                                        LinearOutput::kAddF32, LinearOutput::kSiluUpBf16};

// Shapes of SmolLM2 (hidden 576, ffn 1536), of Qwen2.5 and Llama's widths, and odd ones.
TEST(CudaLinear, Shapes) {
  for (const Shape& shape : {Shape{960, 576}, Shape{3072, 576}, Shape{576, 1536}, Shape{16, 8},
                             Shape{48, 136}, Shape{160, 3584}, Shape{4096, 1032}, Shape{96, 14336},
                             Shape{32, 18944}, Shape{64, 12800}}) {
    for (const int32_t tokens : {1, 2, 5, 8}) {
      for (const bool normalise : {false, true}) {
        const Problem problem(shape, tokens, normalise);
        for (const LinearOutput output : kAllOutputs) {
          check(run_linear, problem, output, output == LinearOutput::kStoreF32);
        }
      }
    }
  }
}

TEST(CudaLinear, RowsThatFillNoTile) {
  for (const int64_t rows : {1, 7, 17, 49152 + 3}) {
    for (const int32_t tokens : {1, 3}) {
      check(run_linear, Problem({rows, 264}, tokens, true), LinearOutput::kStoreF32, true);
      check(run_linear, Problem({rows, 264}, tokens, false), LinearOutput::kAddF32, false);
    }
  }
}

// The test sees a missing piece of 8 columns and a product of another token.
TEST(CudaLinear, MutantsAreRejected) {
  for (const bool normalise : {false, true}) {
    const Problem problem({128, 4096}, 2, normalise);
    std::vector<float> result = outputs_of(run_linear, problem, LinearOutput::kStoreF32, false, {});
    EXPECT_GT(count_wrong(problem, LinearOutput::kStoreF32, false, {}, result, 4096 - 8), 100);
    std::swap_ranges(result.begin(), result.begin() + 128, result.begin() + 128);
    EXPECT_GT(count_wrong(problem, LinearOutput::kStoreF32, false, {}, result, 4096), 200);
  }
}

// The bits of a token depend on neither its number nor its neighbours.
TEST(CudaLinear, TokensAreIndependent) {
  for (const bool normalise : {false, true}) {
    const Problem eight({512, 1544}, 8, normalise);
    const auto all = outputs_of(run_linear, eight, LinearOutput::kStoreF32, false, {});
    Problem last = eight;
    last.tokens = 1;
    last.x.erase(last.x.begin(), last.x.end() - 1544);
    last.x_bf16.erase(last.x_bf16.begin(), last.x_bf16.end() - 1544);
    const auto one = outputs_of(run_linear, last, LinearOutput::kStoreF32, false, {});
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.end() - 512));
  }
}

TEST(CudaGemm, Shapes) {
  for (const Gemm::Library library : {Gemm::Library::kFind, Gemm::Library::kNone}) {
    auto gemm = Gemm::create(cuda_device(), library);
    check_status(gemm.status(), "Gemm::create");
    std::printf("Gemm: %s\n", (*gemm)->name().c_str());
    const DeviceArray<uint8_t> workspace((*gemm)->workspace_bytes() + 16);
    const RunProduct run = [&](const Problem& problem, LinearOutput output, bool with_bias,
                               void* y) {
      const DeviceArray<uint16_t> weight(problem.weight), x(problem.x_bf16);
      const DeviceArray<float> bias(problem.bias);
      const cuda::GemmArgs args{weight.data(),
                                x.data(),
                                with_bias ? bias.data() : nullptr,
                                output,
                                y,
                                problem.shape.rows,
                                problem.shape.cols,
                                problem.tokens};
      const Status status = (*gemm)->run(args, workspace.data(), nullptr);
      check_cuda(cudaDeviceSynchronize(), "gemm");
      return status;
    };
    for (const Shape& shape : {Shape{960, 576}, Shape{16, 8}, Shape{200, 3584}, Shape{64, 14336}}) {
      for (const int32_t tokens : {1, 9, 130}) {
        const Problem problem(shape, tokens, false);
        check(run, problem, LinearOutput::kStoreF32, true);
        check(run, problem, LinearOutput::kStoreF32, false);
        check(run, problem, LinearOutput::kStoreBf16, false);
        check(run, problem, LinearOutput::kAddF32, false);
      }
    }
  }
}

}  // namespace
}  // namespace longdecode::testing
