// Pre-tokenizers, one row per rule, and chat templates.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runner/tokenizer/chat_template.h"
#include "runner/tokenizer/pre_tokenizer.h"
#include "tests/support/byte_vocabulary.h"

namespace longdecode::runner {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const char* pre, std::string_view text) {
  const Result<PreTokenizer> splitter = PreTokenizer::create(pre);
  EXPECT_TRUE(splitter.ok()) << splitter.status().message();
  Pieces pieces;
  for (std::string_view piece : splitter->split(text)) pieces.emplace_back(piece);
  return pieces;
}

TEST(PreTokenizer, Pieces) {
  struct Case {
    const char* pre;
    const char* text;
    Pieces pieces;
  };
  const Case cases[] = {
      {"gpt-2", "I've 123 x", {"I", "'ve", " 123", " x"}},
      {"gpt-2", "I'VE", {"I", "'", "VE"}},
      {"gpt-2", "a   b", {"a", "  ", " b"}},
      {"gpt-2", "a \n", {"a", " \n"}},
      {"gpt-2", "!? ..x", {"!?", " ..", "x"}},
      {"gpt-2",
       "a\xc2\xa0"
       "b",
       {"a", "\xc2\xa0", "b"}},
      {"gpt-2",
       "a\xc2\x85"
       "b",
       {"a", "\xc2\x85", "b"}},                             // U+0085 is white space
      {"gpt-2", "\xe1\xa0\x8e!", {"\xe1\xa0\x8e!"}},        // U+180E is not
      {"gpt-2", "\xd9\xa1\xd9\xa2", {"\xd9\xa1\xd9\xa2"}},  // Arabic digits are digits
      {"gpt-2", "e\xcc\x81t", {"e", "\xcc\x81", "t"}},      // a combining mark is none of both
      {"gpt-2",
       "a\xff\xfe"
       "b",
       {"a", "\xff\xfe", "b"}},  // not UTF-8
      {"smollm", "abc 123", {"abc", " ", "1", "2", "3"}},
      {"smollm", "a  7", {"a", "  ", "7"}},
      {"llama-bpe", "I'VE 12345", {"I", "'VE", " ", "123", "45"}},
      {"llama-bpe", "(x) \n\ny", {"(x", ")", " \n\n", "y"}},
      {"llama-bpe", "a;\n\nb", {"a", ";\n\n", "b"}},
      {"qwen2", "I'VE 123", {"I", "'VE", " ", "1", "2", "3"}},
      {"qwen2", "a \r\n b", {"a", " \r\n", " b"}},
  };
  for (const Case& example : cases) {
    EXPECT_EQ(split(example.pre, example.text), example.pieces)
        << example.pre << ": " << testing::PrintToString(example.text);
  }
}

TEST(PreTokenizer, PiecesJoinToTheText) {
  const std::string text =
      "\xff  don't \xe4\xb8\xad\xe6\x96\x87 12\t\r\n\n x\xc3 \x01!\xf0\x9f\x98\x80  ";
  for (const char* pre : {"smollm", "gpt-2", "llama-bpe", "qwen2"}) {
    std::string joined;
    for (const std::string& piece : split(pre, text)) {
      EXPECT_FALSE(piece.empty());
      joined += piece;
    }
    EXPECT_EQ(joined, text) << pre;
  }
}

constexpr const char* kSmolTemplate =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}";
constexpr const char* kPlainTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>'}}{% endfor %}";
constexpr const char* kLlama3Template =
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' }}";

// Bytes, then the special tokens of both families.
Tokenizer tokenizer_with(const std::vector<std::string>& specials) {
  TokenizerData data = byte_vocabulary();
  for (const std::string& text : specials) {
    data.tokens.push_back(text);
    data.types.push_back(static_cast<int32_t>(TokenType::kControl));
  }
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

std::string prompt(const char* template_text, const std::vector<ChatMessage>& messages) {
  const Tokenizer tokenizer = tokenizer_with(
      {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  const Result<ChatTemplate> chat = ChatTemplate::recognize(template_text);
  EXPECT_TRUE(chat.ok()) << chat.status().message();
  const Result<Encoding> encoding = chat->encode(messages, tokenizer);
  EXPECT_TRUE(encoding.ok()) << encoding.status().message();
  return tokenizer.decode(encoding->ids, true);
}

TEST(ChatTemplate, WritesTheFamilysFormat) {
  EXPECT_EQ(prompt(kSmolTemplate, {{"user", "Hi"}}),
            "<|im_start|>system\nYou are SmolLM<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(prompt(kSmolTemplate, {{"system", "Be brief."}, {"user", "Hi"}}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(prompt(kPlainTemplate, {{"user", "Hi"}}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt(kLlama3Template, {{"user", " Hi\n"}}),
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplate, SpecialTokensInAMessageAreText) {
  const Tokenizer tokenizer = tokenizer_with({"<|im_start|>", "<|im_end|>"});
  const Result<ChatTemplate> chat = ChatTemplate::recognize(kPlainTemplate);
  ASSERT_TRUE(chat.ok());
  const std::vector<ChatMessage> messages = {{"user", "x<|im_end|>"}};
  const Result<Encoding> encoding = chat->encode(messages, tokenizer);
  ASSERT_TRUE(encoding.ok());
  int num_ends = 0;
  for (int32_t id : encoding->ids) num_ends += id == tokenizer.find_token("<|im_end|>");
  EXPECT_EQ(num_ends, 1);
}

TEST(ChatTemplate, UnknownOnesAreRefused) {
  EXPECT_EQ(ChatTemplate::recognize("").status().code(), StatusCode::kNotFound);
  const Status status = ChatTemplate::recognize("[INST] {{ x }} [/INST]").status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("chatml, llama-3"), std::string::npos) << status.message();
  // The tokens of the format must be in the vocabulary.
  const Result<ChatTemplate> chat = ChatTemplate::recognize(kPlainTemplate);
  ASSERT_TRUE(chat.ok());
  const std::vector<ChatMessage> messages = {{"user", "x"}};
  EXPECT_EQ(chat->encode(messages, tokenizer_with({"<|im_end|>"})).status().code(),
            StatusCode::kDataLoss);
}

}  // namespace
}  // namespace longdecode::runner
