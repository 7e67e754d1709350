// Conversations over a KvCache: forked, truncated and continued, each equals a run from scratch.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/float_convert.h"
#include "longdecode/kv_cache.h"
#include "ref/decode.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

constexpr int32_t kQHeads = 4;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kDim = 64;

// The text of a conversation decides its keys, values and queries.
struct Conversation {
  std::vector<int32_t> tokens;
  float element(size_t position, int32_t kind, int32_t i) const {
    const auto token = static_cast<float>(tokens[position]);
    return std::sin(token * 12.9898f + static_cast<float>(position) * 0.731f +
                    static_cast<float>(kind * 1000 + i) * 3.117f);
  }
};

Conversation make_text(int32_t first, int32_t count) {
  Conversation text;
  for (int32_t i = 0; i < count; ++i) text.tokens.push_back(first + i * 7 % 101);
  return text;
}

KvFormat cache_format(Method method) {
  return KvFormat::gqa(method == Method::kFfd ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain,
                       DType::kBF16, kKvHeads, kDim, 64);
}

class Engine {
 public:
  Engine(Method method, int32_t num_pages)
      : cache_(KvCache::create({cache_format(method), 1, num_pages, 4, 1024}, cpu_device())),
        plan_(DecodePlan::create(desc(method), cpu_device())),
        workspace_(plan_.ok() ? plan_->workspace_bytes() : 0) {}

  bool ok() { return cache_.ok() && plan_.ok() && plan_->init(workspace_.data(), nullptr).ok(); }
  KvCache& cache() { return *cache_; }

  // Adds tokens [kv_len, end) of the text to the sequence, `chunk` at a time.
  void extend(SequenceId id, const Conversation& text, size_t end, int32_t chunk) {
    auto length = static_cast<size_t>(*cache_->kv_len(id));
    while (length < end) {
      const auto count = std::min(chunk, static_cast<int32_t>(end - length));
      ASSERT_TRUE(cache_->reserve(std::vector{id}, std::vector{count}).ok());
      std::vector<float> k, v;
      for (int32_t t = 0; t < count; ++t) {
        for (int32_t i = 0; i < kKvHeads * kDim; ++i) {
          k.push_back(text.element(length + static_cast<size_t>(t), 0, i));
          v.push_back(text.element(length + static_cast<size_t>(t), 1, i));
        }
      }
      const auto view = [&](std::vector<float>& x) {
        return TensorView::contiguous(x.data(), DType::kF32, {1, count, kKvHeads, kDim});
      };
      ASSERT_TRUE(cache_->append(0, view(k), view(v), nullptr).ok());
      ASSERT_TRUE(cache_->commit().ok());
      length += static_cast<size_t>(count);
    }
  }

  // Attention of the last token of the text, as bits.
  std::vector<uint32_t> attend(SequenceId id, const Conversation& text) {
    alignas(64) float q[kQHeads * kDim];
    alignas(64) float o[kQHeads * kDim];
    for (int32_t i = 0; i < kQHeads * kDim; ++i) {
      q[i] = 4.0f * text.element(text.tokens.size() - 1, 2, i);
    }
    // A step without new tokens: the lengths and the table of the sequence.
    EXPECT_TRUE(cache_->reserve(std::vector{id}, std::vector{0}).ok());
    DecodeArgs args;
    args.q = TensorView::contiguous(q, DType::kF32, {1, 1, kQHeads, kDim});
    args.o = TensorView::contiguous(o, DType::kF32, {1, 1, kQHeads, kDim});
    args.kv = cache_->layer(0);
    args.batch = cache_->step();
    args.batch.query_lens = nullptr;
    uint32_t tiles[kKvHeads * 2];
    args.stats.kept_tiles = tiles;
    args.stats.kept_tiles_stride = 2;
    const Status status = plan_->run(args, nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    const ref::TileSet kept(tiles, 2, kKvHeads, args.batch.kv_lens[0]);
    const ref::DecodeResult expected = ref::decode(plan_->desc(), args, 0, &kept);
    for (size_t i = 0; i < expected.attention.o.size(); ++i) {
      EXPECT_NEAR(double{o[i]}, expected.attention.o[i], 1e-5);
    }
    std::vector<uint32_t> bits;
    for (const float x : o) bits.push_back(std::bit_cast<uint32_t>(x));
    return bits;
  }

 private:
  static DecodeDesc desc(Method method) {
    DecodeDesc desc;
    desc.method = method;
    desc.format = cache_format(method);
    desc.q_dtype = DType::kF32;
    desc.num_q_heads = kQHeads;
    desc.max_kv_len = 1024;
    desc.ffd.sink_tokens = 16;
    desc.ffd.recent_tokens = 16;
    desc.ffd.delta = 1.0f;
    return desc;
  }

  Result<KvCache> cache_;
  Result<DecodePlan> plan_;
  GuardedBuffer workspace_;
};

std::vector<uint32_t> from_scratch(Method method, const Conversation& text) {
  Engine engine(method, 16);
  EXPECT_TRUE(engine.ok());
  const SequenceId id = *engine.cache().add_sequence();
  engine.extend(id, text, text.tokens.size(), 1000);
  return engine.attend(id, text);
}

Conversation join(const Conversation& a, size_t a_len, const Conversation& b) {
  Conversation both;
  both.tokens.assign(a.tokens.begin(), a.tokens.begin() + static_cast<std::ptrdiff_t>(a_len));
  both.tokens.insert(both.tokens.end(), b.tokens.begin(), b.tokens.end());
  return both;
}

TEST(Conversation, QuickCase28ForkTruncateAndContinue) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    for (const int32_t prefix_len : {40, 64, 71, 73, 75, 140, 300}) {
      Engine engine(method, 32);
      ASSERT_TRUE(engine.ok());
      const Conversation prefix = make_text(3, prefix_len);
      const SequenceId first = *engine.cache().add_sequence();
      engine.extend(first, prefix, prefix.tokens.size(), 50);
      const SequenceId second = *engine.cache().fork(first);
      // The first goes on with 30 tokens; the second loses 3 and goes on with others.
      const Conversation one = join(prefix, prefix.tokens.size(), make_text(500, 30));
      const Conversation two = join(prefix, prefix.tokens.size() - 3, make_text(900, 45));
      engine.extend(first, one, prefix.tokens.size() + 10, 1);
      ASSERT_TRUE(engine.cache().truncate(second, 3).ok());
      engine.extend(second, two, two.tokens.size(), 2);
      engine.extend(first, one, one.tokens.size(), 8);
      EXPECT_EQ(engine.attend(first, one), from_scratch(method, one)) << prefix_len;
      EXPECT_EQ(engine.attend(second, two), from_scratch(method, two)) << prefix_len;
    }
  }
}

TEST(Conversation, QuickRejectedSpeculationLeavesNoTrace) {
  for (const Method method : {Method::kDense, Method::kFfd}) {
    for (int32_t length = 60; length < 145; length += 7) {
      Engine engine(method, 32);
      ASSERT_TRUE(engine.ok());
      const Conversation text = make_text(11, length);
      const SequenceId id = *engine.cache().add_sequence();
      engine.extend(id, text, 20, 20);
      // 8 guesses are appended and all but one of them taken back, again and again.
      for (size_t right = 20; right < text.tokens.size(); ++right) {
        Conversation guess = join(text, right, make_text(7000 + static_cast<int32_t>(right), 8));
        guess.tokens[right] = text.tokens[right];
        engine.extend(id, guess, right + 8, 8);
        ASSERT_TRUE(engine.cache().truncate(id, 7).ok());
      }
      EXPECT_EQ(engine.attend(id, text), from_scratch(method, text)) << length;
    }
  }
}

}  // namespace
}  // namespace longdecode::testing
