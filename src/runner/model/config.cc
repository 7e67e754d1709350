#include "runner/model/config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::runner {
namespace {

constexpr std::array<std::string_view, 3> kArchitectures = {"llama", "qwen2", "qwen3"};

constexpr int64_t kMaxDim = 1 << 20;  // of any dimension but the vocabulary; far above real models
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxContext = int64_t{1} << 31;

// Reads keys "<architecture>.<name>".
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  Status read(const char* name, int64_t max, int32_t* value) const {
    LD_ASSIGN_OR_RETURN(const int64_t number, file_.get_int(prefix_ + name, 1, max));
    *value = static_cast<int32_t>(number);
    return Status();
  }
  Status read_or(const char* name, int64_t max, int64_t fallback, int32_t* value) const {
    LD_ASSIGN_OR_RETURN(const int64_t number, file_.get_int_or(prefix_ + name, 1, max, fallback));
    *value = static_cast<int32_t>(number);
    return Status();
  }
  // Options whose presence with another value than `allowed` changes the maths.
  Status refuse_unless(const char* name, int64_t allowed) const {
    LD_ASSIGN_OR_RETURN(const int64_t number,
                        file_.get_int_or(prefix_ + name, 0, kMaxContext, allowed));
    if (number == allowed) return Status();
    return unsupported("'{}': key '{}{}' is {}; only {} is supported", file_.path(), prefix_, name,
                       number, allowed);
  }
  std::string key(const char* name) const { return prefix_ + name; }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

Status read_heads(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  LD_RETURN_IF_ERROR(keys.read("attention.head_count", kMaxDim, &config->num_q_heads));
  LD_RETURN_IF_ERROR(
      keys.read_or("attention.head_count_kv", kMaxDim, config->num_q_heads, &config->num_kv_heads));
  if (config->num_q_heads % config->num_kv_heads != 0) {
    return invalid_argument("'{}': {} query heads are no multiple of {} kv heads", file.path(),
                            config->num_q_heads, config->num_kv_heads);
  }
  const bool given = file.has(keys.key("attention.key_length"));
  if (!given && config->hidden_dim % config->num_q_heads != 0) {
    return invalid_argument("'{}': embedding_length {} is no multiple of head_count {}",
                            file.path(), config->hidden_dim, config->num_q_heads);
  }
  LD_RETURN_IF_ERROR(keys.read_or("attention.key_length", kMaxDim,
                                  config->hidden_dim / config->num_q_heads, &config->head_dim));
  return keys.refuse_unless("attention.value_length", config->head_dim);
}

Status read_rope(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  LD_RETURN_IF_ERROR(
      keys.read_or("rope.dimension_count", config->head_dim, config->head_dim, &config->rope_dim));
  if (config->rope_dim % 2 != 0) {
    return invalid_argument("'{}': rope.dimension_count is {}; an even number is needed",
                            file.path(), config->rope_dim);
  }
  LD_ASSIGN_OR_RETURN(config->rope_freq_base,
                      file.get_float_or(keys.key("rope.freq_base"), 10000.0));
  // rope.scale_linear is what older files call it.
  LD_ASSIGN_OR_RETURN(const double old_factor,
                      file.get_float_or(keys.key("rope.scale_linear"), 1.0));
  LD_ASSIGN_OR_RETURN(const double factor,
                      file.get_float_or(keys.key("rope.scaling.factor"), old_factor));
  LD_ASSIGN_OR_RETURN(const std::string_view scaling,
                      file.get_string_or(keys.key("rope.scaling.type"), "linear"));
  if (config->rope_freq_base <= 0.0 || factor <= 0.0) {
    return invalid_argument("'{}': rope.freq_base is {} and rope.scaling.factor {}; above 0 needed",
                            file.path(), config->rope_freq_base, factor);
  }
  if (scaling != "linear" && scaling != "none") {
    return unsupported("'{}': key '{}' is '{}'; supported: none, linear", file.path(),
                       keys.key("rope.scaling.type"), printable(scaling));
  }
  config->rope_position_scale = scaling == "linear" ? 1.0 / factor : 1.0;
  return Status();
}

}  // namespace

Result<ModelConfig> read_model_config(const GgufFile& file) {
  LD_ASSIGN_OR_RETURN(const std::string_view architecture, file.get_string("general.architecture"));
  if (std::find(kArchitectures.begin(), kArchitectures.end(), architecture) ==
      kArchitectures.end()) {
    return unsupported("'{}': architecture is '{}'; supported: {}", file.path(),
                       printable(architecture), fmt::join(kArchitectures, ", "));
  }
  ModelConfig config;
  config.architecture = architecture;
  config.rope_pairs = architecture == "llama" ? RopePairs::kAdjacent : RopePairs::kHalves;
  config.has_qkv_bias = architecture == "qwen2";
  config.has_qk_norm = architecture == "qwen3";
  LD_ASSIGN_OR_RETURN(config.name, file.get_string_or("general.name", ""));
  const Keys keys(file, architecture);
  LD_RETURN_IF_ERROR(keys.read("block_count", kMaxLayers, &config.num_layers));
  LD_RETURN_IF_ERROR(keys.read("embedding_length", kMaxDim, &config.hidden_dim));
  LD_RETURN_IF_ERROR(keys.read("feed_forward_length", kMaxDim, &config.ffn_dim));
  LD_RETURN_IF_ERROR(read_heads(file, keys, &config));
  LD_RETURN_IF_ERROR(read_rope(file, keys, &config));
  LD_RETURN_IF_ERROR(keys.refuse_unless("expert_count", 0));
  LD_RETURN_IF_ERROR(keys.refuse_unless("attention.sliding_window", 0));
  LD_ASSIGN_OR_RETURN(config.context_len, file.get_int(keys.key("context_length"), 1, kMaxContext));
  LD_ASSIGN_OR_RETURN(const double eps,
                      file.get_float(keys.key("attention.layer_norm_rms_epsilon")));
  if (eps < 0.0) {
    return invalid_argument("'{}': layer_norm_rms_epsilon is {}; 0 or more is needed", file.path(),
                            eps);
  }
  config.rms_eps = static_cast<float>(eps);
  // The embedding decides the vocabulary; the key, where there is one, must agree with it.
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return not_found("'{}' has no tensor 'token_embd.weight'", file.path());
  constexpr int64_t kMaxVocab = int64_t{1} << 30;
  if (embedding->shape[1] > kMaxVocab) {
    return invalid_argument("'{}': tensor 'token_embd.weight' has shape {}; at most {} tokens",
                            file.path(), embedding->shape_string(), kMaxVocab);
  }
  LD_RETURN_IF_ERROR(
      keys.read_or("vocab_size", kMaxVocab, embedding->shape[1], &config.vocab_size));
  return config;
}

}  // namespace longdecode::runner
