// Kernels against the reference on queries, keys and values of a trained model:
// tests/data/smollm2_qkv.safetensors, written by `longdecode dump-qkv`.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/safetensors.h"

namespace longdecode::testing {
namespace {

constexpr int32_t kQHeads = 9;
constexpr int32_t kKvHeads = 3;
constexpr int32_t kHeadDim = 64;

// The last query_len queries of a layer over its first kv_len tokens.
ProblemSpec real_spec(Method method, DType dtype, int32_t page_size, int32_t layer, int32_t kv_len,
                      int32_t query_len) {
  static const auto dump = tests::load_safetensors("tests/data/smollm2_qkv.safetensors");
  ProblemSpec spec = gqa_spec(method, dtype, kQHeads, kKvHeads, kHeadDim, page_size, {kv_len});
  spec.desc.ffd = FfdOptions{};
  spec.query_len = query_len;
  spec.note = "layer " + std::to_string(layer) + " of the dump";
  spec.edit = [layer](LogicalSequence& s, int32_t) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const auto copy = [&](const char* name, int64_t first_token, std::vector<float>* to) {
      const tests::LoadedTensor& from = dump.at(prefix + name);
      std::copy_n(from.values.begin() + first_token * from.shape[1] * from.shape[2], to->size(),
                  to->begin());
    };
    copy("k", 0, &s.k);
    copy("v", 0, &s.v);
    copy("q", s.kv_len - s.query_len, &s.q);
  };
  return spec;
}

TEST(RealTensors, Dense) {
  for (const int32_t layer : {0, 17}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      EXPECT_EQ(run_and_check(real_spec(Method::kDense, dtype, 32, layer, 800, 3)), "");
    }
  }
}

// check() holds the kept tiles against the selection in fp64.
TEST(RealTensors, FfdWithTheDefaultOptions) {
  for (const int32_t layer : {0, 17}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (const int32_t page_size : {64, 128}) {
        EXPECT_EQ(run_and_check(real_spec(Method::kFfd, dtype, page_size, layer, 800, 1)), "");
        EXPECT_EQ(run_and_check(real_spec(Method::kFfd, dtype, page_size, layer, 700, 4)), "");
      }
    }
  }
}

TEST(RealTensors, FfdMarginsAndBounds) {
  for (const int32_t layer : {0, 17}) {
    ProblemSpec spec = real_spec(Method::kFfd, DType::kF16, 64, layer, 800, 1);
    spec.desc.ffd.sink_tokens = spec.desc.ffd.recent_tokens = 16;
    for (const float margin_sigmas : {0.0f, 1.0f, 3.0f}) {
      spec.desc.ffd.margin_sigmas = margin_sigmas;
      EXPECT_EQ(run_and_check(spec), "");
    }
    spec.desc.ffd.certified = true;
    EXPECT_EQ(run_and_check(spec), "");
  }
}

// As the paper says of trained models: layer 0 attends widely, a later one to a few tokens.
TEST(RealTensors, ALaterLayerKeepsFewTokens) {
  std::map<int32_t, double> kept;
  for (const int32_t layer : {0, 17}) {
    ProblemSpec spec = real_spec(Method::kFfd, DType::kF16, 64, layer, 800, 1);
    spec.desc.ffd.sink_tokens = spec.desc.ffd.recent_tokens = 16;
    const PagedProblem problem(spec);
    const Outputs outputs = run_plan(problem.desc(), problem.args());
    for (const int64_t tokens : outputs.tokens_attended) {
      kept[layer] += static_cast<double>(tokens) / (800.0 * kKvHeads);
    }
  }
  EXPECT_GT(kept[0], kept[17]);
  EXPECT_LT(kept[17], 0.6);
  EXPECT_GT(kept[17], 0.05);
}

}  // namespace
}  // namespace longdecode::testing
