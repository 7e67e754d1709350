// A random llama model of a few kilobytes, as a GGUF file in memory.
#ifndef LONGDECODE_TESTS_SUPPORT_TINY_LLAMA_H_
#define LONGDECODE_TESTS_SUPPORT_TINY_LLAMA_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runner/gguf/ggml_type.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/random_weights.h"

namespace longdecode::tests {

struct TinyLlama {
  uint32_t num_layers = 2;
  uint32_t hidden_dim = 128;
  uint32_t num_q_heads = 3;
  uint32_t num_kv_heads = 1;
  uint32_t head_dim = 64;
  uint32_t ffn_dim = 160;
  uint32_t vocab_size = 300;
  uint32_t context_len = 1024;
  uint32_t rope_dim = 64;
  float rope_freq_base = 10000.0f;
  bool tied = true;
  bool rope_freqs = false;
  runner::GgmlType embedding_type = runner::GgmlType::kQ8_0;
  runner::GgmlType matrix_type = runner::GgmlType::kQ4_1;  // all but ffn_down
  runner::GgmlType down_type = runner::GgmlType::kQ4_1;
  uint32_t seed = 1;

  GgufWriter writer() const {
    std::mt19937 random(seed);
    GgufWriter writer;
    writer.add_string("general.architecture", "llama")
        .add_string("general.name", "tiny")
        .add_u32("llama.block_count", num_layers)
        .add_u32("llama.context_length", context_len)
        .add_u32("llama.embedding_length", hidden_dim)
        .add_u32("llama.feed_forward_length", ffn_dim)
        .add_u32("llama.attention.head_count", num_q_heads)
        .add_u32("llama.attention.head_count_kv", num_kv_heads)
        .add_u32("llama.attention.key_length", head_dim)
        .add_u32("llama.attention.value_length", head_dim)
        .add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
        .add_f32("llama.rope.freq_base", rope_freq_base)
        .add_u32("llama.rope.dimension_count", rope_dim)
        .add_u32("llama.vocab_size", vocab_size);
    const auto matrix = [&](const std::string& name, runner::GgmlType type, uint64_t cols,
                            uint64_t rows) {
      const float size = 1.0f / std::sqrt(static_cast<float>(cols));
      writer.add_tensor(name, static_cast<uint32_t>(type), {cols, rows},
                        random_weights(type, static_cast<int64_t>(cols * rows), size, &random));
    };
    const auto norm = [&](const std::string& name, uint64_t size) {
      std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
      ByteWriter data;
      for (uint64_t i = 0; i < size; ++i) data.put(uniform(random));
      writer.add_tensor(name, 0, {size}, data.bytes());
    };
    matrix("token_embd.weight", embedding_type, hidden_dim, vocab_size);
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      norm(prefix + "attn_norm.weight", hidden_dim);
      matrix(prefix + "attn_q.weight", matrix_type, hidden_dim, num_q_heads * head_dim);
      matrix(prefix + "attn_k.weight", matrix_type, hidden_dim, num_kv_heads * head_dim);
      matrix(prefix + "attn_v.weight", matrix_type, hidden_dim, num_kv_heads * head_dim);
      matrix(prefix + "attn_output.weight", matrix_type, num_q_heads * head_dim, hidden_dim);
      norm(prefix + "ffn_norm.weight", hidden_dim);
      matrix(prefix + "ffn_gate.weight", matrix_type, hidden_dim, ffn_dim);
      matrix(prefix + "ffn_up.weight", matrix_type, hidden_dim, ffn_dim);
      matrix(prefix + "ffn_down.weight", down_type, ffn_dim, hidden_dim);
    }
    norm("output_norm.weight", hidden_dim);
    if (!tied) matrix("output.weight", embedding_type, hidden_dim, vocab_size);
    if (rope_freqs) norm("rope_freqs.weight", rope_dim / 2);
    return writer;
  }
};

}  // namespace longdecode::tests

#endif  // LONGDECODE_TESTS_SUPPORT_TINY_LLAMA_H_
