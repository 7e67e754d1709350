// The shape of a transformer, read from GGUF metadata.
#ifndef LONGDECODE_RUNNER_MODEL_CONFIG_H_
#define LONGDECODE_RUNNER_MODEL_CONFIG_H_

#include <cstdint>
#include <string>

#include "longdecode/status.h"
#include "runner/gguf/gguf_file.h"

namespace longdecode::runner {

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
  double rope_freq_base = 0.0;
  double rope_position_scale = 1.0;  // positions are multiplied by this (linear RoPE scaling)

  int64_t q_dim() const { return int64_t{num_q_heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{num_kv_heads} * head_dim; }
};

// kUnsupported for an architecture or an option that this runner lacks (the message lists what is
// allowed), otherwise the getters' errors.
Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_CONFIG_H_
