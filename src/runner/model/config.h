// The shape of a transformer, read from GGUF metadata.
#ifndef LONGDECODE_RUNNER_MODEL_CONFIG_H_
#define LONGDECODE_RUNNER_MODEL_CONFIG_H_

#include <cmath>
#include <cstdint>
#include <string>

#include "longdecode/status.h"
#include "runner/gguf/gguf_file.h"

namespace longdecode::runner {

// The channels that RoPE rotates together, of the first rope_dim ones of a head.
enum class RopePairs : int32_t {
  kAdjacent,  // (2 i, 2 i + 1)
  kHalves,    // (i, i + rope_dim / 2), "NeoX"
};

struct ModelConfig {
  std::string architecture;  // general.architecture
  std::string name;          // general.name, or empty
  int32_t num_layers = 0;
  int32_t hidden_dim = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_dim = 0;
  int32_t vocab_size = 0;
  int64_t context_len = 0;  // tokens that the model was made for
  float rms_eps = 0.0f;
  int32_t rope_dim = 0;  // channels of a head that are rotated, even, <= head_dim
  RopePairs rope_pairs = RopePairs::kAdjacent;
  double rope_freq_base = 0.0;
  double rope_position_scale = 1.0;  // positions are multiplied by this (linear RoPE scaling)
  bool has_qkv_bias = false;         // the architecture demands it
  bool has_qk_norm = false;          // RMS norm of each query and key head, before RoPE

  int64_t q_dim() const { return int64_t{num_q_heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{num_kv_heads} * head_dim; }
  float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

// kUnsupported for an architecture or an option that this runner lacks (the message lists what is
// allowed), otherwise the getters' errors.
Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_CONFIG_H_
