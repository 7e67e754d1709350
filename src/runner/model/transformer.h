// The layers of a model on the CPU; attention is the caller's.
#ifndef LONGDECODE_RUNNER_MODEL_TRANSFORMER_H_
#define LONGDECODE_RUNNER_MODEL_TRANSFORMER_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "longdecode/status.h"
#include "runner/linear/linear.h"
#include "runner/model/config.h"
#include "runner/model/token_step.h"
#include "runner/model/weights.h"

namespace longdecode::runner {

// One layer's attention of a step's tokens: post-RoPE q [num_tokens, num_q_heads, head_dim], k and
// v [num_tokens, num_kv_heads, head_dim] in, o like q out. fp32, 16-byte aligned.
struct AttentionStep {
  int32_t layer_idx = 0;
  int64_t num_tokens = 0;
  float* q = nullptr;
  float* k = nullptr;
  float* v = nullptr;
  float* o = nullptr;
};
using AttentionFunction = std::function<Status(const AttentionStep&)>;

// Not for concurrent use. Holds the activations of up to max_tokens tokens.
class Transformer {
 public:
  // config and weights outlive the object.
  static Result<Transformer> create(const ModelConfig& config, const ModelWeights& weights,
                                    int64_t max_tokens, int32_t num_threads);

  // Runs tokens at positions first_position, first_position + 1, ... through all layers and leaves
  // the logits of the last one in `logits` [vocab_size] (nullptr: none wanted).
  Status run(std::span<const int32_t> tokens, int64_t first_position,
             const AttentionFunction& attention, float* logits);

  // Seconds in matrix products so far; a single token's norms, which run within them, included.
  double linear_s() const { return linear_s_; }

 private:
  Transformer(const ModelConfig& config, const ModelWeights& weights, int64_t max_tokens,
              int32_t num_threads, Linear linear);
  void embed(std::span<const int32_t> tokens);
  void fill_rope_table(int64_t num_tokens, int64_t first_position);
  void normalize(int64_t num_tokens, const float* weight);
  Status run_one(const AttentionFunction& attention, float* logits);
  Status run_many(int64_t num_tokens, const AttentionFunction& attention, float* logits);
  void finish_qkv(const LayerWeights& layer, int64_t token);
  Status attend(int32_t layer_idx, int64_t num_tokens, const AttentionFunction& attention);
  Status run_attention(int32_t layer_idx, int64_t num_tokens, const AttentionFunction& attention);
  Status multiply(std::initializer_list<Product> products, const float* x, int64_t num_x,
                  int64_t num_cols);
  Status run_ffn(const LayerWeights& layer, int64_t num_tokens);

  const ModelConfig* config_;
  const ModelWeights* weights_;
  int32_t num_threads_;
  Linear linear_;
  TokenStep token_step_;
  double linear_s_ = 0.0;
  std::vector<double> rope_frequencies_;       // [rope_dim / 2] radians per position
  std::vector<float> cos_, sin_;               // [max_tokens, rope_dim / 2]
  std::vector<float> x_, normed_, projected_;  // [max_tokens, hidden_dim]
  std::vector<float> q_, o_;                   // [max_tokens, num_q_heads, head_dim]
  std::vector<float> k_, v_;                   // [max_tokens, num_kv_heads, head_dim]
  std::vector<float> gate_, up_;               // [max_tokens, ffn_dim]
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_TRANSFORMER_H_
