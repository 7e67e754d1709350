// Sessions of a tiny random model through the real cache and kernels, against a double-precision
// forward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runner/linear/linear.h"
#include "tests/unit/model_session_fixture.h"

namespace longdecode::runner {
namespace {

TEST_F(SessionTest, DecodeMatchesDoubleForward) {
  SessionOptions two_threads = options();
  two_threads.device.num_threads = 2;
  Session session = make(two_threads);
  EXPECT_TRUE(session.logits().empty());
  EXPECT_LT(error_of(&session, 1, 200), kDecodeError);
}

TEST_F(SessionTest, DecodeDoesNotDependOnTheNumberOfThreads) {
  std::vector<float> logits;
  for (const int32_t num_threads : {1, 2, 5}) {
    SessionOptions threads = options();
    threads.device.num_threads = num_threads;
    Session session = make(threads);
    (void)error_of(&session, 1, 80);  // below one split of attention, whose merging rounds
    if (logits.empty()) logits.assign(session.logits().begin(), session.logits().end());
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), session.logits().begin())) << num_threads;
  }
}

TEST_F(SessionTest, HalfPrecisionCaches) {
  // Rounding keys and values: 2^-11 (fp16) and 2^-8 (bf16) of each, in two layers.
  for (const auto& [dtype, allowed] : {std::pair(DType::kF16, 2e-3), {DType::kBF16, 1e-2}}) {
    SessionOptions half = options();
    half.kv_dtype = dtype;
    half.page_size = 128;
    Session session = make(half);
    EXPECT_LT(error_of(&session, 1, 150), allowed);
  }
}

TEST_F(SessionTest, PrefillChunksAgree) {
  for (const int32_t chunk : {1, 3, 7, 64, 512}) {
    SessionOptions chunked = options();
    chunked.prefill_chunk = chunk;
    Session session = make(chunked);
    const double allowed = chunk <= kMaxMatvecX ? kDecodeError : kPrefillError;
    EXPECT_LT(error_of(&session, kNumTokens, kNumTokens), allowed) << "chunk " << chunk;
  }
}

TEST_F(SessionTest, DecodeAfterPrefillContinuesTheSequence) {
  for (const int32_t prompt : {3, 64, 250}) {
    Session session = make(options());
    EXPECT_LT(error_of(&session, prompt, 270), kPrefillError) << "prompt " << prompt;
    EXPECT_EQ(session.stats().decode_steps, 270 - prompt);
  }
}

TEST_F(SessionTest, PrefillInSeveralCallsAndItsProgress) {
  SessionOptions chunked = options();
  chunked.prefill_chunk = 50;
  Session session = make(chunked);
  std::vector<int64_t> seen;
  const auto progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 120);
    seen.push_back(done);
  };
  ASSERT_TRUE(session.prefill(tokens(0, 120), progress).ok());
  EXPECT_EQ(seen, (std::vector<int64_t>{50, 100, 120}));
  ASSERT_TRUE(session.prefill(tokens(120, 200), nullptr).ok());
  EXPECT_EQ(session.num_tokens(), 200);
  EXPECT_LT(relative_error(session.logits(), expected_[199]), kPrefillError);
}

TEST_F(SessionTest, StatsOfADenseSession) {
  Session session = make(options());
  EXPECT_EQ(session.stats().kv_bytes, 0);
  EXPECT_EQ(session.stats().kept_fraction, 1.0);
  (void)error_of(&session, 100, 102);
  const SessionStats stats = session.stats();
  EXPECT_EQ(stats.decode_steps, 2);
  EXPECT_EQ(stats.kept_fraction, 1.0);
  const int64_t token_bytes = 2 * 64 * 4;               // K and V of one head of 64 fp32 channels
  EXPECT_EQ(stats.kv_bytes, 2 * 2 * 64 * token_bytes);  // 2 layers x 2 pages of 64
  EXPECT_NEAR(stats.kv_bytes_read_per_token, 2 * 101.5 * token_bytes, 1.0);
  EXPECT_FALSE(session.kernel_name().empty());
}

TEST_F(SessionTest, BadTokensAreRefusedAndChangeNothing) {
  SessionOptions small = options();
  small.context_len = 150;
  Session session = make(small);
  EXPECT_EQ(session.options().context_len, 150);
  const auto expect = [](const Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  expect(session.prefill({}, nullptr), "tokens is empty");
  expect(session.prefill(std::vector<int32_t>{1, 300}, nullptr),
         "tokens[1] is 300; the vocabulary allows 0 to 299");
  expect(session.decode(-1), "tokens[0] is -1");
  expect(session.prefill(tokens(0, 151), nullptr), "151 tokens after 0 exceed the context of 150");
  EXPECT_EQ(session.num_tokens(), 0);
  EXPECT_LT(error_of(&session, 148, 150), kPrefillError);
  expect(session.decode(1), "1 tokens after 150 exceed the context of 150");
  EXPECT_LT(relative_error(session.logits(), expected_[149]), kPrefillError);
}

TEST_F(SessionTest, BadOptionsAreRefusedByName) {
  const auto expect = [](void (*change)(SessionOptions*), StatusCode code, const char* part) {
    SessionOptions bad = options();
    change(&bad);
    const auto session = Session::create(model_, bad);
    ASSERT_FALSE(session.ok()) << part;
    EXPECT_EQ(session.status().code(), code) << part;
    EXPECT_NE(session.status().message().find(part), std::string::npos)
        << session.status().message();
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  expect([](SessionOptions* o) { o->context_len = 1025; }, kInvalid,
         "context_len is 1025; the model allows 1 to 1024");
  expect([](SessionOptions* o) { o->context_len = -1; }, kInvalid, "context_len is -1");
  expect([](SessionOptions* o) { o->prefill_chunk = 0; }, kInvalid, "prefill_chunk is 0");
  expect([](SessionOptions* o) { o->page_size = 0; }, kInvalid, "page_size is 0");
  expect([](SessionOptions* o) { o->page_size = 48; }, kInvalid, "page_size is 48");
  expect(
      [](SessionOptions* o) {
        o->dense_layers = {0, 2};
      },
      kInvalid, "dense_layers has layer 2; the model's layers are 0 to 1");
  expect([](SessionOptions* o) { o->max_batch = 0; }, kInvalid, "max_batch is 0");
  expect([](SessionOptions* o) { o->num_pages = -1; }, kInvalid, "num_pages is -1");
  expect([](SessionOptions* o) { o->device.num_threads = 0; }, kInvalid, "num_threads is 0");
  expect([](SessionOptions* o) { o->device.type = DeviceType::kCuda; }, StatusCode::kUnsupported,
         "kv_dtype is 0; models on CUDA keep keys and values in bf16 (2)");
  expect(
      [](SessionOptions* o) {
        o->device.type = DeviceType::kCuda;
        o->kv_dtype = DType::kBF16;
        o->observer = [](const LayerTensors&) { return Status(); };
      },
      StatusCode::kUnsupported, "observer");
  expect([](SessionOptions* o) { o->method = Method::kFfd, o->page_size = 32; }, kInvalid,
         "page_size is 32");
  expect([](SessionOptions* o) { o->method = Method::kFfd, o->ffd.delta = -1.0f; }, kInvalid,
         "delta");
  EXPECT_FALSE(Session::create(nullptr, options()).ok());
}

}  // namespace
}  // namespace longdecode::runner
