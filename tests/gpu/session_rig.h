// Tiny random models for sessions on the CUDA device, beside a double-precision forward pass.
#ifndef LONGDECODE_TESTS_GPU_SESSION_RIG_H_
#define LONGDECODE_TESTS_GPU_SESSION_RIG_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "longdecode/attention.h"
#include "runner/model/session.h"
#include "tests/support/llama_reference.h"
#include "tests/support/random_weights.h"
#include "tests/support/tiny_llama.h"

namespace longdecode::runner {

using tests::TinyLlama;

inline constexpr int32_t kNumTokens = 300;
// Activations are rounded to bf16 (2^-9) on their way into every product, queries, keys, values and
// attention's output once more; the weights of these models are bf16. Two layers of some ten
// roundings each: 2^-9 * sqrt(20), for the worst of 300 tokens twice that.
inline constexpr double kBf16Error = 2 * 4.5 / 512;

struct Rig {
  std::shared_ptr<const Model> model;
  std::vector<int32_t> tokens;
  std::vector<std::vector<double>> expected;  // logits after each token

  explicit Rig(const TinyLlama& shape) {
    auto file = GgufFile::from_bytes(shape.writer().finish(), "tiny");
    model = Model::from_file(std::move(file).value()).value();
    std::mt19937 random(5);
    tests::LlamaReference reference(*model);
    for (int32_t i = 0; i < kNumTokens; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % shape.vocab_size));
      expected.push_back(reference.next(tokens.back()));
    }
  }
  static SessionOptions options() {
    SessionOptions options;
    options.device = detect_device(DeviceType::kCuda).value();
    options.kv_dtype = DType::kBF16;
    options.page_size = 64;
    options.prefill_chunk = 100;
    return options;
  }
  Session make(const SessionOptions& options) const {
    auto session = Session::create(model, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(session).value();
  }
  std::span<const int32_t> some(int32_t begin, int32_t end) const {
    return std::span(tokens).subspan(size_t(begin), size_t(end - begin));
  }
  // Prefills `prompt` tokens, decodes up to `count`; the largest error on the way.
  double error_of(Session* session, int32_t prompt, int32_t count) const {
    EXPECT_TRUE(session->prefill(some(0, prompt), nullptr).ok());
    double error = tests::relative_error(session->logits(), expected[size_t(prompt - 1)]);
    for (int32_t i = prompt; i < count; ++i) {
      const Status status = session->decode(tokens[size_t(i)]);
      EXPECT_TRUE(status.ok()) << status.message();
      error = std::max(error, tests::relative_error(session->logits(), expected[size_t(i)]));
    }
    return error;
  }
};

class GpuModel : public ::testing::TestWithParam<const char*> {
 protected:
  static TinyLlama shape() {
    TinyLlama shape;
    shape.architecture = GetParam();
    shape.tied = shape.architecture == "llama";
    shape.rope_freqs = shape.architecture == "llama";
    shape.embedding_type = shape.matrix_type = shape.down_type = GgmlType::kBF16;
    shape.rope_scale_linear = shape.architecture == "qwen3" ? 2.0f : 0.0f;
    return shape;
  }
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_TESTS_GPU_SESSION_RIG_H_
