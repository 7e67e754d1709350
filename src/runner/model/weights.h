// The tensors of a model, found in the file and checked.
#ifndef LONGDECODE_RUNNER_MODEL_WEIGHTS_H_
#define LONGDECODE_RUNNER_MODEL_WEIGHTS_H_

#include <vector>

#include "longdecode/status.h"
#include "runner/gguf/gguf_file.h"
#include "runner/linear/matrix.h"
#include "runner/model/config.h"

namespace longdecode::runner {

struct LayerWeights {
  const float* attn_norm = nullptr;  // [hidden_dim]
  Matrix q;                          // [num_q_heads * head_dim, hidden_dim]
  Matrix k;                          // [num_kv_heads * head_dim, hidden_dim]
  Matrix v;                          // as k
  const float* q_bias = nullptr;     // [num_q_heads * head_dim], or nullptr
  const float* k_bias = nullptr;     // [num_kv_heads * head_dim], or nullptr
  const float* v_bias = nullptr;     // as k_bias
  const float* q_norm = nullptr;     // [head_dim], or nullptr
  const float* k_norm = nullptr;     // as q_norm
  Matrix attn_output;                // [hidden_dim, num_q_heads * head_dim]
  const float* ffn_norm = nullptr;   // [hidden_dim]
  Matrix ffn_gate;                   // [ffn_dim, hidden_dim]
  Matrix ffn_up;                     // as ffn_gate
  Matrix ffn_down;                   // [hidden_dim, ffn_dim]
};

struct ModelWeights {                    // views into the file
  Matrix token_embedding;                // [vocab_size, hidden_dim]
  std::vector<LayerWeights> layers;      // [num_layers]
  const float* output_norm = nullptr;    // [hidden_dim]
  Matrix output;                         // [vocab_size, hidden_dim]; the embedding where tied
  const float* rope_divisors = nullptr;  // [rope_dim / 2] divide the RoPE frequencies, or nullptr
};

// A tensor that is missing, of another shape or of a type without kernels is named, and so is one
// that this runner would leave unused (its output would be silently wrong).
Result<ModelWeights> find_weights(const GgufFile& file, const ModelConfig& config);

// [rope_dim / 2] radians per position; divisors as ModelWeights::rope_divisors.
std::vector<double> rope_frequencies(const ModelConfig& config, const float* divisors);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_WEIGHTS_H_
