// fuzz_corpus DIR: writes the files that fuzzing starts from to DIR/gguf and DIR/prompt_cache.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runner/prompt_cache/prompt_cache.h"
#include "tests/fuzz/fuzz_model.h"

namespace longdecode::fuzz {
namespace {

namespace fs = std::filesystem;
using runner::GgmlType;

void write(const fs::path& path, const std::vector<uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void add_tokenizer(tests::GgufWriter* writer, const char* pre) {
  writer->add_string("tokenizer.ggml.model", "gpt2")
      .add_string("tokenizer.ggml.pre", pre)
      .add_strings("tokenizer.ggml.tokens", {"a", "b", "c", "ab", "abc", "\xc4\xa0", "<|im_end|>"})
      .add_array("tokenizer.ggml.token_type", runner::GgufType::kInt32,
                 std::vector<int32_t>{1, 1, 1, 1, 1, 1, 3})
      .add_strings("tokenizer.ggml.merges", {"a b", "ab c"})
      .add_u32("tokenizer.ggml.eos_token_id", 6)
      .add_u32("tokenizer.ggml.bos_token_id", 6)
      .add_scalar("tokenizer.ggml.add_bos_token", runner::GgufType::kBool, uint8_t{1})
      .add_string("tokenizer.chat_template", "<|im_start|>system\nYou.<|im_end|>");
}

void write_models(const fs::path& folder) {
  fs::create_directories(folder);
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0,
                              GgmlType::kQ4_0, GgmlType::kQ4_1}) {
    tests::TinyLlama tiny;
    tiny.num_layers = 1;
    tiny.hidden_dim = 32;
    tiny.num_q_heads = 1;
    tiny.ffn_dim = 32;
    tiny.vocab_size = 7;
    tiny.embedding_type = tiny.matrix_type = tiny.down_type = type;
    tiny.tied = type != GgmlType::kF16;
    tiny.rope_freqs = type == GgmlType::kF32;
    tests::GgufWriter writer = tiny.writer();
    add_tokenizer(&writer, type == GgmlType::kQ8_0 ? "gpt-2" : "smollm");
    write(folder / ("llama_" + std::to_string(static_cast<int>(type))), writer.finish());
  }
  tests::GgufWriter metadata;
  add_tokenizer(&metadata, "llama-bpe");
  write(folder / "tokenizer", metadata.finish());
}

// Lengths below a page, with and without a quantised page, with one and two restore points.
bool write_prompt_caches(const fs::path& folder) {
  fs::create_directories(folder);
  const auto model = fuzz_model();
  std::vector<int32_t> tokens(150);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 40);
  for (const Method method : {Method::kDense, Method::kFfd}) {
    for (const int64_t length : {3, 70, 140}) {
      runner::Session session = fuzz_session(model, method);
      const std::span<const int32_t> all(tokens);
      if (!session.prefill(all.first(static_cast<size_t>(length)), nullptr).ok()) return false;
      std::vector<runner::RestorePoint> points = {runner::capture_point(session).value()};
      if (length > 3) {
        if (!session.decode(tokens[static_cast<size_t>(length)]).ok()) return false;
        points.push_back(runner::capture_point(session).value());
      }
      const fs::path path =
          folder / (std::to_string(static_cast<int>(method)) + "_" + std::to_string(length));
      const auto held = all.first(static_cast<size_t>(session.num_tokens()));
      if (!runner::save_prompt_cache(path, kModelHash, held, points, session).ok()) return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace longdecode::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: fuzz_corpus DIR\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  longdecode::fuzz::write_models(folder / "gguf");
  return longdecode::fuzz::write_prompt_caches(folder / "prompt_cache") ? 0 : 1;
}
