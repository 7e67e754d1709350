// A random model of a few kilobytes (llama, qwen2 or qwen3), as a GGUF file in memory.
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
  std::string architecture = "llama";
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
  float rope_scale_linear = 0.0f;  // above 0: positions are divided by this
  // Of a layer's K bias, which qwen2 always has: as in trained models most of it lies in the
  // channels that RoPE turns slowest. Above 0: any architecture.
  float k_bias_norm = 0.0f;
  float q_scale = 1.0f;           // of attn_q: above 1 attention is peaked
  bool leave_out_extras = false;  // what qwen2 and qwen3 need beyond llama
  runner::GgmlType embedding_type = runner::GgmlType::kQ8_0;
  runner::GgmlType matrix_type = runner::GgmlType::kQ4_1;  // all but ffn_down
  runner::GgmlType down_type = runner::GgmlType::kQ4_1;
  uint32_t seed = 1;

  GgufWriter writer() const {
    std::mt19937 random(seed);
    GgufWriter writer;
    const auto key = [this](const char* name) { return architecture + "." + name; };
    writer.add_string("general.architecture", architecture)
        .add_string("general.name", "tiny")
        .add_u32(key("block_count"), num_layers)
        .add_u32(key("context_length"), context_len)
        .add_u32(key("embedding_length"), hidden_dim)
        .add_u32(key("feed_forward_length"), ffn_dim)
        .add_u32(key("attention.head_count"), num_q_heads)
        .add_u32(key("attention.head_count_kv"), num_kv_heads)
        .add_u32(key("attention.key_length"), head_dim)
        .add_u32(key("attention.value_length"), head_dim)
        .add_f32(key("attention.layer_norm_rms_epsilon"), 1e-5f)
        .add_f32(key("rope.freq_base"), rope_freq_base)
        .add_u32(key("rope.dimension_count"), rope_dim)
        .add_u32(key("vocab_size"), vocab_size);
    const auto matrix = [&](const std::string& name, runner::GgmlType type, uint64_t cols,
                            uint64_t rows, float scale = 1.0f) {
      const float size = scale / std::sqrt(static_cast<float>(cols));
      writer.add_tensor(name, static_cast<uint32_t>(type), {cols, rows},
                        random_weights(type, static_cast<int64_t>(cols * rows), size, &random));
    };
    const auto norm = [&](const std::string& name, uint64_t size) {
      std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
      ByteWriter data;
      for (uint64_t i = 0; i < size; ++i) data.put(uniform(random));
      writer.add_tensor(name, 0, {size}, data.bytes());
    };
    if (rope_scale_linear > 0.0f) {
      writer.add_string(key("rope.scaling.type"), "linear")
          .add_f32(key("rope.scaling.factor"), rope_scale_linear);
    }
    matrix("token_embd.weight", embedding_type, hidden_dim, vocab_size);
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      norm(prefix + "attn_norm.weight", hidden_dim);
      matrix(prefix + "attn_q.weight", matrix_type, hidden_dim, num_q_heads * head_dim, q_scale);
      matrix(prefix + "attn_k.weight", matrix_type, hidden_dim, num_kv_heads * head_dim);
      matrix(prefix + "attn_v.weight", matrix_type, hidden_dim, num_kv_heads * head_dim);
      matrix(prefix + "attn_output.weight", matrix_type, num_q_heads * head_dim, hidden_dim);
      if (!leave_out_extras) add_extras(prefix, &writer, &random);
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

 private:
  // Biases and norms of q, k and v.
  void add_extras(const std::string& prefix, GgufWriter* writer, std::mt19937* random) const {
    const auto vector = [&](const char* name, const std::vector<float>& values) {
      ByteWriter data;
      for (const float value : values) data.put(value);
      writer->add_tensor(prefix + name, 0, {values.size()}, data.bytes());
    };
    const auto around = [&](float mean, size_t size) {
      std::normal_distribution<float> normal(mean, 0.3f);
      std::vector<float> values(size);
      for (float& value : values) value = normal(*random);
      return values;
    };
    if (architecture == "qwen3") {
      vector("attn_q_norm.weight", around(1.0f, head_dim));
      vector("attn_k_norm.weight", around(1.0f, head_dim));
    }
    if (architecture != "qwen2" && k_bias_norm <= 0.0f) return;
    std::vector<float> k = around(0.0f, num_kv_heads * head_dim);
    // Four channels per head, two of each end of the slowest pairs.
    const float large = k_bias_norm / std::sqrt(4.0f * static_cast<float>(num_kv_heads));
    for (uint32_t head = 0; head < num_kv_heads; ++head) {
      for (const uint32_t back : {1u, 2u}) {
        k[head * head_dim + rope_dim / 2 - back] += large;
        k[head * head_dim + rope_dim - back] -= large;
      }
    }
    vector("attn_q.bias", around(0.0f, num_q_heads * head_dim));
    vector("attn_k.bias", k);
    vector("attn_v.bias", around(0.0f, num_kv_heads * head_dim));
  }
};

}  // namespace longdecode::tests

#endif  // LONGDECODE_TESTS_SUPPORT_TINY_LLAMA_H_
