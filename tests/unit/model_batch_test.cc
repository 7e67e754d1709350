// Batches of prompts: what each gives is what it gives alone, in whatever order they end.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runner/model/batch.h"
#include "tests/support/batch_texts.h"
#include "tests/unit/model_session_fixture.h"

namespace longdecode::runner {
namespace {

class BatchTest : public SessionTest {
 protected:
  // Of different lengths, some over a page; ragged in what they may add, too.
  static std::vector<BatchPrompt> prompts() {
    std::vector<BatchPrompt> prompts;
    const int32_t begins[] = {0, 100, 7, 250, 30, 1, 60};
    const int32_t ends[] = {90, 103, 207, 300, 31, 65, 124};
    const int64_t counts[] = {20, 1, 33, 5, 70, 2, 20};
    for (size_t i = 0; i < 7; ++i) {
      prompts.push_back({tokens(begins[i], ends[i]), counts[i], 10 + i});
    }
    return prompts;
  }

  static BatchRequest request(const std::vector<BatchPrompt>& prompts, float temperature,
                              Texts* texts) {
    SamplerOptions sampler;
    sampler.temperature = temperature;
    return text_request(prompts, sampler, texts);
  }

  // What the prompt gives in a session of its own.
  static std::vector<int32_t> alone(const SessionOptions& options, const BatchPrompt& prompt,
                                    float temperature) {
    SamplerOptions sampler_options;
    sampler_options.temperature = temperature;
    sampler_options.seed = prompt.seed;
    Sampler sampler = Sampler::create(sampler_options).value();
    Session session = make(options);
    EXPECT_TRUE(session.prefill(prompt.tokens, nullptr).ok());
    std::vector<int32_t> text = {sampler.sample(session.logits()).value()};
    while (static_cast<int64_t>(text.size()) < prompt.max_tokens) {
      EXPECT_TRUE(session.decode(text.back()).ok());
      text.push_back(sampler.sample(session.logits()).value());
    }
    return text;
  }

  static SessionOptions batched(const SessionOptions& options, int32_t max_batch) {
    SessionOptions batched = options;
    batched.max_batch = max_batch;
    return batched;
  }
};

TEST_F(BatchTest, EveryPromptGivesWhatItGivesAlone) {
  const std::vector<BatchPrompt> all = prompts();
  for (const Method method : {Method::kDense, Method::kFfd}) {
    for (const float temperature : {0.0f, 1.0f}) {
      SessionOptions one = options();
      one.method = method;
      one.prefill_chunk = 50;
      one.ffd.sink_tokens = one.ffd.recent_tokens = 16;
      one.ffd.delta = 0.5f;
      Texts expected;
      for (const BatchPrompt& prompt : all) expected.push_back(alone(one, prompt, temperature));
      for (const int32_t max_batch : {1, 3, 8}) {
        Session session = make(batched(one, max_batch));
        const int64_t empty_bytes = session.stats().kv_bytes;
        Texts texts;
        const Status status = session.generate_batch(request(all, temperature, &texts));
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(texts, expected) << max_batch;
        int64_t num_fed = 0;
        for (const BatchPrompt& prompt : all) num_fed += prompt.max_tokens - 1;
        EXPECT_EQ(session.stats().decode_steps, num_fed);
        EXPECT_EQ(session.stats().kv_bytes, empty_bytes);  // all sequences are gone
        EXPECT_GT(session.stats().prefill_times.total_s, 0.0);
        EXPECT_GT(session.stats().decode_times.total_s, 0.0);
      }
    }
  }
}

TEST_F(BatchTest, TheSessionGoesOnEmptyAfterwards) {
  Session session = make(batched(options(), 2));
  ASSERT_TRUE(session.prefill(tokens(0, 40), nullptr).ok());
  const std::vector<BatchPrompt> all = prompts();
  Texts texts;
  ASSERT_TRUE(session.generate_batch(request(all, 0.0f, &texts)).ok());
  EXPECT_EQ(session.num_tokens(), 0);
  EXPECT_TRUE(session.logits().empty());
  EXPECT_LT(error_of(&session, 100, 110), kPrefillError);
}

TEST_F(BatchTest, AVerdictEndsAPromptAndTheNextOneTakesItsPlace) {
  const std::vector<BatchPrompt> all = prompts();
  Session session = make(batched(options(), 2));
  Texts expected;
  std::vector<int64_t> order;  // of prefills
  Texts texts;
  BatchRequest stops = request(all, 0.0f, &texts);
  stops.on_token = [&](int64_t prompt_idx, int32_t token) -> TokenVerdict {
    auto& text = texts[static_cast<size_t>(prompt_idx)];
    text.push_back(token);
    if (text.size() < 3) return TokenVerdict::kContinue;
    return prompt_idx % 2 == 0 ? TokenVerdict::kStop : TokenVerdict::kStopAndDrop;
  };
  stops.on_prefill = [&](int64_t prompt_idx, int64_t done, int64_t total) {
    EXPECT_EQ(done, total);
    EXPECT_EQ(total, static_cast<int64_t>(all[static_cast<size_t>(prompt_idx)].tokens.size()));
    order.push_back(prompt_idx);
  };
  ASSERT_TRUE(session.generate_batch(stops).ok());
  for (const BatchPrompt& prompt : all) {
    expected.push_back(alone(options(), prompt, 0.0f));
    expected.back().resize(std::min<size_t>(expected.back().size(), 3));
  }
  EXPECT_EQ(texts, expected);
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST_F(BatchTest, AnErrorOfTheCallerEndsTheBatch) {
  const std::vector<BatchPrompt> all = prompts();
  Session session = make(batched(options(), 3));
  Texts texts;
  BatchRequest fails = request(all, 0.0f, &texts);
  int32_t calls = 0;
  fails.on_token = [&](int64_t, int32_t) -> Result<TokenVerdict> {
    if (++calls == 10) return Status(StatusCode::kUnavailable, "the screen is full");
    return TokenVerdict::kContinue;
  };
  const Status status = session.generate_batch(fails);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the screen is full");
  EXPECT_LE(calls, 12);  // the rest of the row
  EXPECT_LT(error_of(&session, 100, 110), kPrefillError);
}

TEST_F(BatchTest, PromptsWaitForPages) {
  const std::vector<BatchPrompt> all = prompts();
  Texts texts, expected;
  for (const BatchPrompt& prompt : all) expected.push_back(alone(options(), prompt, 0.0f));
  for (const int64_t num_pages : {4, 5, 9}) {  // the longest needs 4 of 64 tokens
    SessionOptions few = batched(options(), 8);
    few.num_pages = num_pages;
    Session session = make(few);
    const Status status = session.generate_batch(request(all, 0.0f, &texts));
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(texts, expected) << num_pages;
  }
}

TEST_F(BatchTest, BannedTokensAreNeverChosen) {
  const std::vector<BatchPrompt> all = prompts();
  Session session = make(batched(options(), 3));
  Texts texts;
  ASSERT_TRUE(session.generate_batch(request(all, 0.0f, &texts)).ok());
  std::vector<int32_t> banned;
  for (const auto& text : texts) banned.insert(banned.end(), text.begin(), text.end());
  BatchRequest bans = request(all, 0.0f, &texts);
  bans.banned = banned;
  ASSERT_TRUE(session.generate_batch(bans).ok());
  for (const auto& text : texts) {
    for (const int32_t token : text) {
      EXPECT_EQ(std::find(banned.begin(), banned.end(), token), banned.end());
    }
  }
}

TEST_F(BatchTest, WhatIsWrongIsRefusedByPromptAndChangesNothing) {
  SessionOptions small = batched(options(), 2);
  small.context_len = 250;
  small.num_pages = 3;
  Session session = make(small);
  ASSERT_TRUE(session.prefill(tokens(0, 40), nullptr).ok());
  const auto refused = [&](void (*change)(BatchPrompt*, BatchRequest*), const char* part) {
    std::vector<BatchPrompt> all = prompts();
    all.resize(2);
    Texts texts;
    BatchRequest bad = request(all, 0.0f, &texts);
    change(&all[1], &bad);
    const Status status = session.generate_batch(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(session.num_tokens(), 40);
  };
  static const std::vector<int32_t> outside = {1, 300};
  refused([](BatchPrompt* p, BatchRequest*) { p->tokens = {}; }, "prompts[1] has no tokens");
  refused([](BatchPrompt* p, BatchRequest*) { p->tokens = outside; },
          "prompts[1].tokens[1] is 300; the vocabulary allows 0 to 299");
  refused([](BatchPrompt* p, BatchRequest*) { p->tokens = tokens(0, 251); },
          "prompts[1] has 251 tokens; the context allows 250");
  refused([](BatchPrompt* p, BatchRequest*) { p->max_tokens = 0; },
          "prompts[1].max_tokens is 0; the context allows 1 to 248");
  refused([](BatchPrompt* p, BatchRequest*) { p->max_tokens = 249; },
          "prompts[1].max_tokens is 249; the context allows 1 to 248");
  refused([](BatchPrompt* p, BatchRequest*) { p->max_tokens = 192; },
          "prompts[1] needs 4 pages with its 192 tokens to come; num_pages is 3");
  refused([](BatchPrompt*, BatchRequest* r) { r->prompts = {}; }, "prompts is empty");
  refused([](BatchPrompt*, BatchRequest* r) { r->on_token = nullptr; }, "on_token is empty");
  refused([](BatchPrompt*, BatchRequest* r) { r->banned = outside; }, "banned[1] is 300");
  refused([](BatchPrompt*, BatchRequest* r) { r->sampler.top_p = 2.0f; }, "top_p is 2");
}

// A device that chooses a row ahead of the host: token i of a sequence is its seed + i.
class AheadRunner final : public StepRunner {
 public:
  explicit AheadRunner(KvCache* cache) : cache_(cache) {}

  Status run(const ModelStep& step, SequenceId sequence) override {
    const auto count = static_cast<int32_t>(step.tokens.size());
    return feed({&sequence, 1}, count);
  }
  Status begin_batch(const SamplerOptions&, std::span<const int32_t>) override { return Status(); }
  Result<int32_t> choose_first(const BatchMember& member, const float*, StepTimes*) override {
    return static_cast<int32_t>(member.seed);
  }
  Status decode_batch(std::span<const BatchMember> members, int64_t max_steps, const OnRow& on_row,
                      StepTimes*) override {
    std::vector<SequenceId> sequences;
    std::vector<int32_t> row;
    for (const BatchMember& member : members) {
      sequences.push_back(member.sequence);
      row.push_back(member.token);
    }
    batches.push_back(members.size());
    bool goes_on = true;
    std::vector<int32_t> undelivered;
    for (int64_t i = 0; i < max_steps && goes_on; ++i) {
      const Status status = feed(sequences, 1);
      if (!status.ok()) return status;
      for (int32_t& token : row) ++token;
      if (!undelivered.empty()) goes_on = on_row(undelivered);
      undelivered = row;
    }
    (void)on_row(undelivered);
    return Status();
  }
  void end_batch() override { ++num_ended; }
  void fill(SessionStats*) const override {}
  std::string kernel_name() const override { return "ahead"; }

  std::vector<size_t> batches;  // sizes
  int num_ended = 0;

 private:
  Status feed(std::span<const SequenceId> sequences, int32_t count) {
    const std::vector<int32_t> counts(sequences.size(), count);
    Status status = cache_->reserve(sequences, counts);
    if (status.ok()) status = cache_->mark_appended(0);
    return status.ok() ? cache_->commit() : status;
  }
  KvCache* cache_;
};

TEST(BatchOnADeviceAhead, NoTokenIsLostOrDoubled) {
  constexpr int32_t kPageSize = 64;
  KvCacheDesc desc;
  desc.format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF32, 1, 64, kPageSize);
  desc.num_pages = 9;
  desc.max_sequences = 3;
  desc.max_kv_len = 300;
  KvCache cache = KvCache::create(desc, detect_device(DeviceType::kCpu).value()).value();
  AheadRunner runner(&cache);
  const std::vector<int32_t> tokens(150, 1);
  std::vector<BatchPrompt> prompts;
  std::vector<size_t> lengths;
  for (int32_t i = 0; i < 12; ++i) {
    const auto count = static_cast<size_t>(1 + i * 37 % 130);
    lengths.push_back(static_cast<size_t>(1 + i * 29 % 60));
    prompts.push_back({std::span(tokens).first(count), 60, static_cast<uint64_t>(1000 * i)});
  }
  Texts texts(prompts.size());
  BatchRequest request;
  request.prompts = prompts;
  request.on_token = [&](int64_t prompt_idx, int32_t token) {
    auto& text = texts[static_cast<size_t>(prompt_idx)];
    text.push_back(token);
    const bool ends = text.size() == lengths[static_cast<size_t>(prompt_idx)];
    return ends ? TokenVerdict::kStop : TokenVerdict::kContinue;
  };
  StepTimes prefill_times, decode_times;
  const BatchTarget target = {10, 300, 3, 64, &cache, &runner, &prefill_times, &decode_times};
  const Status status = run_batch(request, target);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(texts[i].size(), lengths[i]);
    for (size_t t = 0; t < texts[i].size(); ++t) {
      EXPECT_EQ(texts[i][t], static_cast<int32_t>(prompts[i].seed + t));
    }
  }
  EXPECT_EQ(cache.num_free_pages(), desc.num_pages);
  EXPECT_EQ(*std::max_element(runner.batches.begin(), runner.batches.end()), 3u);
  EXPECT_EQ(runner.num_ended, 1);

  // A row without a number ends everything, and names the prompt.
  prompts[1].seed = static_cast<uint64_t>(-5);
  const Status no_number = run_batch(request, target);
  EXPECT_EQ(no_number.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(no_number.message().find("prompts[1]"), std::string::npos) << no_number.message();
  EXPECT_EQ(cache.num_free_pages(), desc.num_pages);
  EXPECT_EQ(runner.num_ended, 2);
}

}  // namespace
}  // namespace longdecode::runner
