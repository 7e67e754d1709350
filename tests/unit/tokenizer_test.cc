// The tokenizer over a small vocabulary made here: merging, special tokens, bytes, bad
// vocabularies.
#include "runner/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runner/tokenizer/byte_alphabet.h"
#include "runner/tokenizer/stream_decoder.h"
#include "runner/tokenizer/utf8.h"
#include "tests/support/byte_vocabulary.h"

namespace longdecode::runner {
namespace {

using Ids = std::vector<int32_t>;

constexpr int32_t kBos = 256;
constexpr int32_t kEnd = 257;
constexpr int32_t kUser = 258;
constexpr int32_t kFirstMerged = 259;

// All 256 bytes (id = byte), <s>, <|im_end|>, the user-defined [TAG], then one token per merge.
TokenizerData small_data(const std::vector<std::string>& merges = {"a b", "ab ab", "b c", "h e"}) {
  TokenizerData data = byte_vocabulary();
  for (const char* text : {"<s>", "<|im_end|>", "[TAG]"}) data.tokens.push_back(text);
  data.types.push_back(static_cast<int32_t>(TokenType::kControl));
  data.types.push_back(static_cast<int32_t>(TokenType::kControl));
  data.types.push_back(static_cast<int32_t>(TokenType::kUserDefined));
  data.merges = merges;
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ', 1);
    data.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
    data.types.push_back(static_cast<int32_t>(TokenType::kNormal));
  }
  data.bos_id = kBos;
  data.eos_id = kEnd;
  return data;
}

Tokenizer small_tokenizer(TokenizerData data = small_data()) {
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false) {
  return tokenizer.encode(text, {.parse_special = parse_special}).ids;
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer tokenizer = small_tokenizer();
  constexpr int32_t kAb = kFirstMerged, kAbab = kFirstMerged + 1, kBc = kFirstMerged + 2;
  EXPECT_EQ(encode(tokenizer, "ab"), Ids({kAb}));
  EXPECT_EQ(encode(tokenizer, "abc"), Ids({kAb, 'c'}));  // "a b" is ranked before "b c"
  EXPECT_EQ(encode(tokenizer, "bbc"), Ids({'b', kBc}));
  EXPECT_EQ(encode(tokenizer, "ababab"), Ids({kAbab, kAb}));
  EXPECT_EQ(encode(tokenizer, "xabababab"), Ids({'x', kAbab, kAbab}));
  EXPECT_EQ(encode(tokenizer, ""), Ids());
}

TEST(Tokenizer, MergesStayWithinAPiece) {
  const Tokenizer tokenizer = small_tokenizer(small_data({"a b", "b ."}));
  EXPECT_EQ(encode(tokenizer, "b."), Ids({'b', '.'}));
}

TEST(Tokenizer, SpecialTokensMatchOnlyWhenAsked) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_EQ(encode(tokenizer, "ab<|im_end|>ab", true), Ids({kFirstMerged, kEnd, kFirstMerged}));
  EXPECT_EQ(encode(tokenizer, "<s>", false), Ids({'<', 's', '>'}));
  EXPECT_EQ(encode(tokenizer, "[TAG]<s>", false), Ids({kUser, '<', 's', '>'}));
  EXPECT_EQ(encode(tokenizer, "[TAG", true), Ids({'[', 'T', 'A', 'G'}));
}

TEST(Tokenizer, LongestSpecialTokenWins) {
  TokenizerData data = small_data();
  data.tokens.push_back("<s>>");
  data.types.push_back(static_cast<int32_t>(TokenType::kControl));
  const Tokenizer tokenizer = small_tokenizer(std::move(data));
  EXPECT_EQ(encode(tokenizer, "<s>>", true), Ids({tokenizer.vocab_size() - 1}));
  EXPECT_EQ(encode(tokenizer, "<s>", true), Ids({kBos}));
}

TEST(Tokenizer, BosIsAddedWhereTheModelWantsOne) {
  TokenizerData data = small_data();
  EXPECT_FALSE(small_tokenizer(data).adds_bos());
  data.add_bos = true;
  const Tokenizer tokenizer = small_tokenizer(data);
  EXPECT_EQ(encode(tokenizer, "x"), Ids({kBos, 'x'}));
  EXPECT_EQ(tokenizer.encode("x", {.add_bos = false}).ids, Ids({'x'}));
  data.add_bos.reset();
  data.pre = "llama-bpe";
  EXPECT_TRUE(small_tokenizer(data).adds_bos());
}

TEST(Tokenizer, EndOfGeneration) {
  const Tokenizer tokenizer = small_tokenizer();
  EXPECT_TRUE(tokenizer.is_end_of_generation(kEnd));
  EXPECT_FALSE(tokenizer.is_end_of_generation(kBos));
  EXPECT_FALSE(tokenizer.is_end_of_generation(-1));
  EXPECT_FALSE(tokenizer.is_end_of_generation(std::numeric_limits<int32_t>::max()));
}

TEST(Tokenizer, DecodeShowsControlTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = small_tokenizer();
  const Ids ids = {kBos, kFirstMerged, kUser, kEnd, -5, 1 << 30};
  EXPECT_EQ(tokenizer.decode(ids), "ab[TAG]");
  EXPECT_EQ(tokenizer.decode(ids, true), "<s>ab[TAG]<|im_end|>");
}

TEST(Tokenizer, BytesThatAreNotUtf8RoundTrip) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string cases[] = {std::string("\xff\xfe\x00z", 4),
                               "\xc3",
                               "ab\xe2\x82",
                               "\xed\xa0\x80 surrogate",
                               "\xf4\x90\x80\x80",
                               "\xc0\xaf",
                               "\x80\x80\x80",
                               "caf\xe9 au lait",
                               "\xf0\x9f\x98\x80\xf0\x9f"};
  for (const std::string& text : cases) {
    const Encoding encoding = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(encoding.ids), text);
    EXPECT_EQ(encoding.num_dropped_bytes, 0);
  }
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string text(random() % 64, '\0');
    for (char& c : text) c = static_cast<char>(random());
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, text)), text);
  }
}

TEST(Tokenizer, BytesWithoutATokenAreCounted) {
  TokenizerData data = small_data();
  data.tokens[4] = "unused";
  const Tokenizer tokenizer = small_tokenizer(std::move(data));
  const Encoding encoding = tokenizer.encode(
      "a\x04"
      "b\x04");
  EXPECT_EQ(encoding.ids, Ids({'a', 'b'}));  // what stands on both sides is not joined
  EXPECT_EQ(encoding.num_dropped_bytes, 2);
}

TEST(Tokenizer, LongInputsAreNotQuadratic) {
  const Tokenizer tokenizer = small_tokenizer();
  constexpr size_t kBytes = size_t{1} << 20;
  std::string mixed;
  while (mixed.size() < kBytes) mixed += "ab hello  abc\n\t12 \xff\xe4\xb8\xad ";
  const std::string inputs[] = {std::string(kBytes, 'a'), std::string(kBytes, ' '),
                                std::string(kBytes, ' ') + "x", std::string(kBytes, '\xff'), mixed};
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text : inputs) {
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, text)).size(), text.size());
  }
  std::string pairs;
  while (pairs.size() < kBytes) pairs += "ab";
  EXPECT_EQ(encode(tokenizer, pairs).size(), kBytes / 4);
  // Quadratic merging of a 1 MB word takes hours; the bound only has to tell that from n log n.
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 30.0);
}

TEST(Tokenizer, BadVocabulariesAreRefused) {
  struct Case {
    const char* name;
    void (*damage)(TokenizerData&);
    StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {"empty", [](TokenizerData& d) { d.tokens.clear(), d.types.clear(); }, StatusCode::kDataLoss,
       "tokenizer.ggml.tokens is empty"},
      {"model", [](TokenizerData& d) { d.model = "bert"; }, StatusCode::kUnsupported, "\"bert\""},
      {"pre", [](TokenizerData& d) { d.pre = "made-up"; }, StatusCode::kUnsupported,
       "\"made-up\"; this build knows smollm, gpt-2, llama-bpe, qwen2"},
      {"types", [](TokenizerData& d) { d.types.pop_back(); }, StatusCode::kDataLoss,
       "tokenizer.ggml.token_type has 262 entries"},
      {"bos", [](TokenizerData& d) { d.bos_id = 100000; }, StatusCode::kDataLoss,
       "tokenizer.ggml.bos_token_id is 100000"},
      {"eos", [](TokenizerData& d) { d.eos_id = -2; }, StatusCode::kDataLoss,
       "tokenizer.ggml.eos_token_id is -2"},
      {"eot", [](TokenizerData& d) { d.eot_id = 263; }, StatusCode::kDataLoss,
       "tokenizer.ggml.eot_token_id is 263"},
      {"bos wanted", [](TokenizerData& d) { d.bos_id = -1, d.add_bos = true; },
       StatusCode::kDataLoss, "tokenizer.ggml.bos_token_id is missing"},
      {"merge without a space", [](TokenizerData& d) { d.merges[1] = "abab"; },
       StatusCode::kDataLoss, "tokenizer.ggml.merges[1]"},
      {"merge of nothing", [](TokenizerData& d) { d.merges[0] = "a "; }, StatusCode::kDataLoss,
       "tokenizer.ggml.merges[0]"},
      {"empty merge", [](TokenizerData& d) { d.merges[2].clear(); }, StatusCode::kDataLoss,
       "tokenizer.ggml.merges[2]"},
      {"merge of no tokens", [](TokenizerData& d) { d.merges[3] = "q q"; }, StatusCode::kDataLoss,
       "tokenizer.ggml.merges[3] names a token"},
  };
  for (const Case& bad : cases) {
    TokenizerData data = small_data();
    bad.damage(data);
    const Result<Tokenizer> tokenizer = Tokenizer::create(std::move(data));
    ASSERT_FALSE(tokenizer.ok()) << bad.name;
    EXPECT_EQ(tokenizer.status().code(), bad.code) << bad.name;
    EXPECT_NE(tokenizer.status().message().find(bad.message), std::string::npos)
        << bad.name << ": " << tokenizer.status().message();
  }
}

TEST(Tokenizer, OddButLegalVocabularies) {
  TokenizerData data = small_data();
  data.tokens.push_back("");          // an empty token
  data.tokens.push_back("ab");        // a duplicate: the first one counts
  data.tokens.push_back("\xff\xff");  // not UTF-8
  data.types.insert(data.types.end(), {3, 1, 99});
  const Tokenizer tokenizer = small_tokenizer(std::move(data));
  EXPECT_EQ(encode(tokenizer, "ab", true), Ids({kFirstMerged}));
  EXPECT_EQ(tokenizer.decode(tokenizer.vocab_size() - 1), "\xff\xff");
}

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  const std::string text = "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80z";
  StreamDecoder decoder;
  std::string joined;
  for (char c : text) {
    const std::string out = decoder.push(std::string_view(&c, 1));
    EXPECT_EQ(utf8_valid_prefix(out), out.size());
    joined += out;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamDecoder, BytesThatCanBeNoCharacterPass) {
  StreamDecoder decoder;
  EXPECT_EQ(decoder.push("\xff"), "\xff");
  EXPECT_EQ(decoder.push("\xe4\xb8"), "");
  EXPECT_EQ(decoder.push("x"), "\xe4\xb8x");
  EXPECT_EQ(decoder.push("\x80\x80\x80\x80"), "\x80\x80\x80\x80");
  EXPECT_EQ(decoder.push("\xf0\x9f\x98"), "");
  EXPECT_EQ(decoder.flush(), "\xf0\x9f\x98");
  EXPECT_EQ(decoder.flush(), "");
}

TEST(Utf8, Boundaries) {
  struct Case {
    std::string text;
    size_t valid;
    size_t incomplete;
  };
  const Case cases[] = {
      {"", 0, 0},
      {"az", 2, 0},
      {"\xc2\x80", 2, 0},
      {"\xc1\xbf", 0, 0},
      {"\xe0\x9f\xbf", 0, 0},
      {"\xe0\xa0\x80", 3, 0},
      {"\xed\x9f\xbf", 3, 0},
      {"\xed\xa0", 0, 0},
      {"\xf0\x8f", 0, 0},
      {"\xf0\x90", 0, 2},
      {"\xf4\x8f\xbf", 0, 3},
      {"\xf4\x90", 0, 0},
      {"\xf5", 0, 0},
      {"a\xe4", 1, 1},
      {"\xe4\xb8\xad\xe4\xb8", 3, 2},
  };
  for (const Case& example : cases) {
    EXPECT_EQ(utf8_valid_prefix(example.text), example.valid)
        << testing::PrintToString(example.text);
    EXPECT_EQ(utf8_incomplete_suffix(example.text), example.incomplete)
        << testing::PrintToString(example.text);
  }
}

TEST(ByteAlphabet, EveryByteHasOneCharacter) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string written = byte_to_alphabet(static_cast<uint8_t>(byte));
    EXPECT_EQ(alphabet_to_bytes(written), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(byte_to_alphabet(' '), "\xc4\xa0");
  EXPECT_EQ(alphabet_to_bytes("\xe4\xb8\xad"), "\xe4\xb8\xad");  // outside the alphabet
}

}  // namespace
}  // namespace longdecode::runner
