// The tokenizer of the real model against recorded ids (scripts/record_tokens.py), and the adapter
// from GGUF.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runner/gguf/gguf_file.h"
#include "runner/tokenizer/from_gguf.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_path.h"

namespace longdecode::runner {
namespace {

TEST(TokenizerModel, RecordedIds) {
  const std::string path = tests::model_path();
  if (path.empty()) GTEST_SKIP() << "no model: set LONGDECODE_MODEL, or `make run` once";
  const Result<GgufFile> file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<Tokenizer> tokenizer = load_tokenizer(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::ifstream stream("tests/data/smollm2_tokens.json");
  const nlohmann::json rows = nlohmann::json::parse(stream);
  EXPECT_GE(rows.size(), 50u);
  for (const auto& row : rows) {
    const std::string text = row["text"];
    const Encoding encoding = tokenizer->encode(text, {.parse_special = row["parse_special"]});
    EXPECT_EQ(encoding.ids, row["ids"].get<std::vector<int32_t>>()) << testing::PrintToString(text);
    const std::string back = tokenizer->decode(encoding.ids, true);
    EXPECT_EQ(static_cast<int64_t>(back.size()),
              static_cast<int64_t>(text.size()) - encoding.num_dropped_bytes);
    if (encoding.num_dropped_bytes == 0) {
      EXPECT_EQ(back, text);
    }
  }
}

TEST(TokenizerModel, ChatPrompt) {
  const std::string path = tests::model_path();
  if (path.empty()) GTEST_SKIP() << "no model: set LONGDECODE_MODEL, or `make run` once";
  const Result<GgufFile> file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<Tokenizer> tokenizer = load_tokenizer(*file);
  const Result<ChatTemplate> chat = load_chat_template(*file);
  ASSERT_TRUE(tokenizer.ok() && chat.ok());
  EXPECT_EQ(chat->family(), ChatTemplate::Family::kChatMl);
  const std::vector<ChatMessage> messages = {{"user", "\n Hi"}};
  const Result<Encoding> encoding = chat->encode(messages, *tokenizer);
  ASSERT_TRUE(encoding.ok());
  const std::string text =
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
      "<|im_end|>\n<|im_start|>user\n\n Hi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(encoding->ids, tokenizer->encode(text, {.parse_special = true}).ids);

  // Turn by turn gives the tokens of the whole.
  const std::vector<ChatMessage> more = {{"user", "\n Hi"}, {"assistant", "Ho."}, {"user", "He?"}};
  std::vector<int32_t> turns = encoding->ids;
  for (const auto& part :
       {tokenizer->encode("Ho."), chat->encode_next("He?", *tokenizer).value()}) {
    turns.insert(turns.end(), part.ids.begin(), part.ids.end());
  }
  EXPECT_EQ(turns, chat->encode(more, *tokenizer)->ids);
}

// The keys of a small tokenizer; `skip` is left out.
tests::GgufWriter small_file(const std::string& skip = "") {
  tests::GgufWriter writer;
  const auto wanted = [&](const char* key) { return skip != key; };
  if (wanted("tokenizer.ggml.model")) writer.add_string("tokenizer.ggml.model", "gpt2");
  if (wanted("tokenizer.ggml.pre")) writer.add_string("tokenizer.ggml.pre", "smollm");
  if (wanted("tokenizer.ggml.tokens")) {
    writer.add_strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<e>"});
  }
  if (wanted("tokenizer.ggml.merges")) writer.add_strings("tokenizer.ggml.merges", {"a b"});
  writer.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {1, 1, 1, 3});
  writer.add_u32("tokenizer.ggml.eos_token_id", 3);
  writer.add_u32("tokenizer.ggml.bos_token_id", 0xffffffffu);
  return writer;
}

TEST(TokenizerFromGguf, ReadsTheKeys) {
  const Result<GgufFile> file = GgufFile::from_bytes(small_file().finish(), "small");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<Tokenizer> tokenizer = load_tokenizer(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->encode("ab<e>", {.parse_special = true}).ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(tokenizer->bos_id(), -1);
  EXPECT_TRUE(tokenizer->is_end_of_generation(3));
  EXPECT_EQ(load_chat_template(*file).status().code(), StatusCode::kNotFound);
}

TEST(TokenizerFromGguf, MissingKeysAreNamed) {
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
                          "tokenizer.ggml.merges"}) {
    const Result<GgufFile> file = GgufFile::from_bytes(small_file(key).finish(), "small");
    ASSERT_TRUE(file.ok()) << file.status().message();
    const Status status = load_tokenizer(*file).status();
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace longdecode::runner
