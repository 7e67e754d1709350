// Prompt caches: what they restore, and what they refuse.
#include "runner/prompt_cache/prompt_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "runner/prompt_cache/layout.h"
#include "runner/prompt_cache/model_hash.h"
#include "runner/prompt_cache/xxh64.h"
#include "tests/unit/model_session_fixture.h"

namespace longdecode::runner {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kModel = 0x1234;

class PromptCacheTest : public SessionTest {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("prompt_cache_") + info->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = (folder_ / "cache").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  static SessionOptions method_options(Method method) {
    SessionOptions result = options();
    result.method = method;
    result.ffd = {.delta = 1.0f, .sink_tokens = 16, .recent_tokens = 16};
    return result;
  }
  static void decode(Session* session, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; ++i) ASSERT_TRUE(session->decode(tokens_[size_t(i)]).ok());
  }
  static std::vector<float> logits_of(const Session& session) {
    return {session.logits().begin(), session.logits().end()};
  }
  // A file with the restore points `prompt` and `end`, and the session that wrote it.
  Session write(const SessionOptions& options, int32_t prompt, int32_t end) {
    Session session = make(options);
    EXPECT_TRUE(session.prefill(tokens(0, prompt), nullptr).ok());
    std::vector<RestorePoint> points = {capture_point(session).value()};
    if (end > prompt) {
      decode(&session, prompt, end);
      points.push_back(capture_point(session).value());
    }
    const Status status = save_prompt_cache(path_, kModel, tokens(0, end), points, session);
    EXPECT_TRUE(status.ok()) << status.message();
    return session;
  }
  std::vector<uint8_t> read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Makes the last bytes the checksum of the others.
  static void seal(std::vector<uint8_t>* bytes) {
    const size_t size = bytes->size() - kChecksumBytes;
    const uint64_t checksum = prompt_cache_checksum(std::span(*bytes).first(size));
    std::memcpy(bytes->data() + size, &checksum, sizeof(checksum));
  }
  static std::string parse_error(const std::vector<uint8_t>& bytes) {
    const auto cache = PromptCache::parse(bytes, "FILE");
    return cache.ok() ? "" : cache.status().message();
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(PromptCacheTest, ARestoredSessionGoesOnBitForBit) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    // Shorter than a page, at a page's end, inside and past the quantisation lag, several pages.
    for (const auto& [prompt, end] : {std::pair(5, 9), {64, 64}, {64, 72}, {71, 73}, {200, 272}}) {
      SCOPED_TRACE(testing::Message() << int(method) << " " << prompt << " " << end);
      Session original = write(method_options(method), prompt, end);
      decode(&original, end, 290);
      auto cache = PromptCache::open(path_);
      ASSERT_TRUE(cache.ok()) << cache.status().message();
      EXPECT_EQ(cache->tokens(), std::vector(tokens_.begin(), tokens_.begin() + end));
      // From both points: what is asked for is the prompt alone, or everything and more.
      for (const int32_t asked : {prompt, end, 290}) {
        const int32_t expected = asked < end ? prompt : end;
        Session session = make(method_options(method));
        const auto restored = cache->restore(tokens(0, asked), kModel, &session);
        ASSERT_TRUE(restored.ok()) << restored.status().message();
        EXPECT_EQ(*restored, expected);
        EXPECT_EQ(session.num_tokens(), expected);
        EXPECT_EQ(session.logits().size(), 300u);
        decode(&session, expected, 290);
        EXPECT_EQ(logits_of(session), logits_of(original));
      }
    }
  }
}

TEST_F(PromptCacheTest, ARestoredPrefillGoesOnBitForBit) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    Session original = write(method_options(method), 150, 150);
    ASSERT_TRUE(original.prefill(tokens(150, 280), nullptr).ok());
    decode(&original, 280, 290);
    Session session = make(method_options(method));
    // What was there is replaced.
    ASSERT_TRUE(session.prefill(tokens(30, 250), nullptr).ok());
    auto cache = PromptCache::open(path_);
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    ASSERT_TRUE(cache->restore(tokens(0, 280), kModel, &session).ok());
    ASSERT_TRUE(session.prefill(tokens(150, 280), nullptr).ok());
    decode(&session, 280, 290);
    EXPECT_EQ(logits_of(session), logits_of(original));
  }
}

TEST_F(PromptCacheTest, SnapshotsComeBackBitForBit) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    Session session = make(method_options(method));
    ASSERT_TRUE(session.prefill(tokens(0, 210), nullptr).ok());
    const Snapshot snapshot = capture(session).value();
    decode(&session, 210, 280);
    const std::vector<float> expected = logits_of(session);
    for (int repeat = 0; repeat < 2; ++repeat) {
      ASSERT_TRUE(restore(snapshot, &session).ok());
      EXPECT_EQ(logits_of(session), snapshot.point.logits);
      decode(&session, 210, 280);
      EXPECT_EQ(logits_of(session), expected);
    }
    ASSERT_TRUE(restore(Snapshot(), &session).ok());
    EXPECT_EQ(session.num_tokens(), 0);
    EXPECT_TRUE(session.logits().empty());
  }
}

TEST_F(PromptCacheTest, TheSameSequenceGivesTheSameFile) {
  (void)write(method_options(Method::kFfd), 70, 80);
  const std::vector<uint8_t> first = read();
  (void)write(method_options(Method::kFfd), 70, 80);
  EXPECT_EQ(read(), first);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(PromptCacheTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  (void)write(method_options(Method::kFfd), 70, 80);
  auto cache = PromptCache::open(path_);
  ASSERT_TRUE(cache.ok());
  const auto refused = [&](const SessionOptions& options, std::span<const int32_t> prompt,
                           uint64_t model, const std::string& part) {
    Session session = make(options);
    ASSERT_TRUE(session.prefill(tokens(0, 3), nullptr).ok());
    const auto result = cache->restore(prompt, model, &session);
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
    EXPECT_NE(result.status().message().find(path_), std::string::npos);
    EXPECT_EQ(session.num_tokens(), 3);
  };
  const SessionOptions ffd = method_options(Method::kFfd);
  SessionOptions other = ffd;
  refused(ffd, tokens(0, 80), kModel + 1, "another model");
  refused(method_options(Method::kDense), tokens(0, 80), kModel, "two-plane (ffd) keys");
  other.kv_dtype = DType::kF16;
  refused(other, tokens(0, 80), kModel, "type f32; this run needs f16");
  other = ffd;
  other.page_size = 128;
  refused(other, tokens(0, 80), kModel, "page_size 64; this run needs 128");
  refused(ffd, tokens(0, 69), kModel, "holds 70 tokens; the prompt ends after 69");
  std::vector<int32_t> prompt(tokens_.begin(), tokens_.begin() + 90);
  prompt[40] = (prompt[40] + 1) % 300;
  refused(ffd, prompt, kModel, "differs from its 70 tokens at token 40");

  other = ffd;
  other.context_len = 75;  // room for the first point, but not for the second
  Session small = make(other);
  EXPECT_FALSE(cache->restore(tokens(0, 80), kModel, &small).ok());
  EXPECT_EQ(cache->restore(tokens(0, 75), kModel, &small).value(), 70);
}

TEST_F(PromptCacheTest, DamageIsFound) {
  (void)write(method_options(Method::kFfd), 20, 23);
  const std::vector<uint8_t> good = read();
  ASSERT_EQ(parse_error(good), "");
  for (size_t size = 0; size < good.size(); size += size < 200 ? 1 : 997) {
    const std::vector<uint8_t> cut(good.begin(), good.begin() + static_cast<int64_t>(size));
    EXPECT_NE(parse_error(cut), "") << size;
    if (size <= sizeof(PromptCacheHeader) + kChecksumBytes) continue;
    std::vector<uint8_t> sealed = cut;  // cut, but with a checksum that matches
    seal(&sealed);
    EXPECT_NE(parse_error(sealed).find("is cut"), std::string::npos) << size;
  }
  for (size_t i = 0; i < good.size(); i += i < sizeof(PromptCacheHeader) ? 1 : 613) {
    std::vector<uint8_t> bad = good;
    bad[i] ^= 0x40;
    EXPECT_NE(parse_error(bad), "") << i;
  }
  std::vector<uint8_t> longer = good;
  longer.resize(good.size() + 16);
  seal(&longer);
  EXPECT_NE(parse_error(longer).find("16 bytes too many"), std::string::npos);
}

TEST_F(PromptCacheTest, EveryHeaderFieldIsChecked) {
  (void)write(method_options(Method::kFfd), 20, 23);
  const std::vector<uint8_t> good = read();
  PromptCacheHeader header;
  std::memcpy(&header, good.data(), sizeof(header));
  const auto error_with = [&](auto change) {
    PromptCacheHeader changed = header;
    change(&changed);
    std::vector<uint8_t> bytes = good;
    std::memcpy(bytes.data(), &changed, sizeof(changed));
    seal(&bytes);
    return parse_error(bytes);
  };
  const auto refused = [&](auto change, const std::string& part) {
    const std::string error = error_with(change);
    EXPECT_NE(error.find(part), std::string::npos) << part << ": " << error;
  };
  using H = PromptCacheHeader;
  refused([](H* h) { h->magic[7] = 'x'; }, "no prompt cache");
  refused([](H* h) { h->version = 2; }, "version 2; this build reads 1");
  for (const int32_t value : {-1, 0, 3}) {
    refused([&](H* h) { h->num_points = value; }, "num_points");
  }
  for (const int32_t value : {INT32_MIN, -1, 0, INT32_MAX}) {
    EXPECT_NE(error_with([&](H* h) { h->num_tokens = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->num_layers = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->vocab_size = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->num_kv_heads = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->key_dim = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->value_dim = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->page_size = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->point_tokens[0] = value; }), "");
    EXPECT_NE(error_with([&](H* h) { h->point_tokens[1] = value; }), "");
  }
  refused([](H* h) { h->num_tokens = INT64_MAX; }, "num_tokens");
  refused([](H* h) { h->op = 7; }, "format");
  refused([](H* h) { h->keys = 7; }, "format");
  refused([](H* h) { h->dtype = 7; }, "format");
  refused([](H* h) { h->vocab_size = 2; }, "has token");
}

TEST_F(PromptCacheTest, AFileThatCannotBeWrittenLeavesNothing) {
  Session session = make(options());
  ASSERT_TRUE(session.prefill(tokens(0, 8), nullptr).ok());
  const std::vector<RestorePoint> points = {capture_point(session).value()};
  const auto save = [&](const std::string& path, std::span<const int32_t> ids) {
    return save_prompt_cache(path, kModel, ids, points, session);
  };
  EXPECT_EQ(save((folder_ / "none" / "x").string(), tokens(0, 8)).code(), StatusCode::kUnavailable);
  fs::create_directory(folder_ / "folder");
  EXPECT_EQ(save((folder_ / "folder").string(), tokens(0, 8)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(save(path_, tokens(0, 7)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  EXPECT_FALSE(PromptCache::open((folder_ / "none").string()).ok());
  EXPECT_FALSE(PromptCache::open(folder_.string()).ok());
}

TEST(Xxh64, MatchesTheSpecification) {
  const auto hash = [](const std::string& text) {
    return Xxh64::hash({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  EXPECT_EQ(hash(""), 0xef46db3751d8e999u);
  EXPECT_EQ(hash("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(hash("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(hash("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1u);
}

TEST(Xxh64, PiecesGiveTheHashOfTheWhole) {
  std::vector<uint8_t> bytes(200);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37);
  const std::span<const uint8_t> all(bytes);
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    Xxh64 state;
    state.update(all.first(cut));
    (void)state.digest();
    state.update(all.subspan(cut));
    ASSERT_EQ(state.digest(), Xxh64::hash(all)) << cut;
  }
}

TEST(ModelHash, DependsOnEveryByteAndNotOnThreads) {
  std::vector<uint8_t> bytes = tests::TinyLlama().writer().finish();
  const auto hash = [](const std::vector<uint8_t>& content, int32_t num_threads) {
    return model_hash(GgufFile::from_bytes(content, "tiny").value(), num_threads);
  };
  const uint64_t expected = hash(bytes, 1);
  EXPECT_EQ(hash(bytes, 3), expected);
  bytes.back() ^= 1;
  EXPECT_NE(hash(bytes, 1), expected);
}

}  // namespace
}  // namespace longdecode::runner
