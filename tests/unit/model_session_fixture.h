// Sessions of a tiny random model beside a double-precision forward pass of the same tokens.
#ifndef LONGDECODE_TESTS_UNIT_MODEL_SESSION_FIXTURE_H_
#define LONGDECODE_TESTS_UNIT_MODEL_SESSION_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <span>
#include <vector>

#include "runner/model/session.h"
#include "tests/support/llama_reference.h"
#include "tests/support/tiny_llama.h"

namespace longdecode::runner {

using tests::relative_error;

inline constexpr int32_t kNumTokens = 300;  // several pages of 64, the last one partial

class SessionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto file = GgufFile::from_bytes(tests::TinyLlama().writer().finish(), "tiny");
    ASSERT_TRUE(file.ok());
    auto model = Model::from_file(std::move(file).value());
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = *model;
    std::mt19937 random(5);
    tests::LlamaReference reference(*model_);
    for (int32_t i = 0; i < kNumTokens; ++i) {
      tokens_.push_back(static_cast<int32_t>(random() % 300));
      expected_.push_back(reference.next(tokens_.back()));
    }
  }
  static void TearDownTestSuite() { model_.reset(); }

  static SessionOptions options() {
    SessionOptions options;
    options.device.num_threads = 1;
    options.kv_dtype = DType::kF32;
    options.page_size = 64;
    return options;
  }
  static Session make(const SessionOptions& options) {
    auto session = Session::create(model_, options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(session).value();
  }
  static std::span<const int32_t> tokens(int32_t begin, int32_t end) {
    return std::span(tokens_).subspan(size_t(begin), size_t(end - begin));
  }
  // Prefills `prompt` tokens, decodes the rest; the error of the last logits.
  static double error_of(Session* session, int32_t prompt, int32_t count) {
    EXPECT_TRUE(session->prefill(tokens(0, prompt), nullptr).ok());
    for (int32_t i = prompt; i < count; ++i) {
      const Status status = session->decode(tokens_[size_t(i)]);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(session->num_tokens(), count);
    return relative_error(session->logits(), expected_[size_t(count - 1)]);
  }

  static inline std::shared_ptr<const Model> model_;
  static inline std::vector<int32_t> tokens_;
  static inline std::vector<std::vector<double>> expected_;  // logits after each token
};

// As in model_test.cc: int16 inputs, or bf16 products in chunks of more than kMaxMatvecX tokens.
inline constexpr double kDecodeError = 5e-4;
inline constexpr double kPrefillError = 3e-2;

}  // namespace longdecode::runner

#endif  // LONGDECODE_TESTS_UNIT_MODEL_SESSION_FIXTURE_H_
