#include "runner/model/weights.h"

#include <cmath>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::runner {
namespace {

class Finder {
 public:
  explicit Finder(const GgufFile& file) : file_(file) {}

  Status matrix(const std::string& name, int64_t num_rows, int64_t num_cols, Matrix* matrix) {
    LD_ASSIGN_OR_RETURN(const GgufTensor* tensor, find(name, {num_cols, num_rows}));
    if (!find_ggml_type(tensor->type_id)->supported) {
      return unsupported("'{}': tensor '{}' has type {}; supported: {}", file_.path(), name,
                         tensor->type_name(), supported_ggml_types());
    }
    *matrix = {static_cast<GgmlType>(tensor->type_id), num_rows, num_cols, tensor->bytes.data()};
    return Status();
  }

  Status vector(const std::string& name, int64_t size, const float** data) {
    LD_ASSIGN_OR_RETURN(const GgufTensor* tensor, find(name, {size}));
    if (!tensor->is(GgmlType::kF32)) {
      return unsupported("'{}': tensor '{}' has type {}; F32 is needed", file_.path(), name,
                         tensor->type_name());
    }
    *data = reinterpret_cast<const float*>(tensor->bytes.data());  // aligned to 8 bytes or more
    return Status();
  }

  Status optional_vector(const std::string& name, int64_t size, bool required, const float** data) {
    if (!required && file_.find_tensor(name) == nullptr) return Status();
    return vector(name, size, data);
  }

  Status check_all_used() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (used_.contains(tensor.name)) continue;
      return unsupported("'{}': tensor '{}' has no place in the model as this runner knows it",
                         file_.path(), printable(tensor.name));
    }
    return Status();
  }

 private:
  Result<const GgufTensor*> find(const std::string& name, std::initializer_list<int64_t> shape) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) return not_found("'{}' has no tensor '{}'", file_.path(), name);
    size_t axis = 0;
    bool same = true;
    for (const int64_t size : shape) same = same && tensor->shape[axis++] == size;
    for (; axis < 4; ++axis) same = same && tensor->shape[axis] == 1;
    if (!same) {
      return invalid_argument("'{}': tensor '{}' has shape {}; [{}] is needed", file_.path(), name,
                              tensor->shape_string(), fmt::join(shape, ", "));
    }
    used_.insert(tensor->name);
    return tensor;
  }

  const GgufFile& file_;
  std::unordered_set<std::string_view> used_;
};

Status find_qkv_extras(Finder* finder, const ModelConfig& config, int32_t idx,
                       LayerWeights* layer) {
  const auto name = [idx](const char* part) { return fmt::format("blk.{}.{}", idx, part); };
  const bool bias = config.has_qkv_bias;
  LD_RETURN_IF_ERROR(
      finder->optional_vector(name("attn_q.bias"), config.q_dim(), bias, &layer->q_bias));
  LD_RETURN_IF_ERROR(
      finder->optional_vector(name("attn_k.bias"), config.kv_dim(), bias, &layer->k_bias));
  LD_RETURN_IF_ERROR(
      finder->optional_vector(name("attn_v.bias"), config.kv_dim(), bias, &layer->v_bias));
  if (!config.has_qk_norm) return Status();
  LD_RETURN_IF_ERROR(finder->vector(name("attn_q_norm.weight"), config.head_dim, &layer->q_norm));
  return finder->vector(name("attn_k_norm.weight"), config.head_dim, &layer->k_norm);
}

Status find_layer(Finder* finder, const ModelConfig& config, int32_t idx, LayerWeights* layer) {
  const auto name = [idx](const char* part) { return fmt::format("blk.{}.{}.weight", idx, part); };
  const int64_t hidden = config.hidden_dim;
  LD_RETURN_IF_ERROR(finder->vector(name("attn_norm"), hidden, &layer->attn_norm));
  LD_RETURN_IF_ERROR(finder->matrix(name("attn_q"), config.q_dim(), hidden, &layer->q));
  LD_RETURN_IF_ERROR(finder->matrix(name("attn_k"), config.kv_dim(), hidden, &layer->k));
  LD_RETURN_IF_ERROR(finder->matrix(name("attn_v"), config.kv_dim(), hidden, &layer->v));
  LD_RETURN_IF_ERROR(find_qkv_extras(finder, config, idx, layer));
  LD_RETURN_IF_ERROR(
      finder->matrix(name("attn_output"), hidden, config.q_dim(), &layer->attn_output));
  LD_RETURN_IF_ERROR(finder->vector(name("ffn_norm"), hidden, &layer->ffn_norm));
  LD_RETURN_IF_ERROR(finder->matrix(name("ffn_gate"), config.ffn_dim, hidden, &layer->ffn_gate));
  LD_RETURN_IF_ERROR(finder->matrix(name("ffn_up"), config.ffn_dim, hidden, &layer->ffn_up));
  return finder->matrix(name("ffn_down"), hidden, config.ffn_dim, &layer->ffn_down);
}

}  // namespace

Result<ModelWeights> find_weights(const GgufFile& file, const ModelConfig& config) {
  Finder finder(file);
  ModelWeights weights;
  LD_RETURN_IF_ERROR(finder.matrix("token_embd.weight", config.vocab_size, config.hidden_dim,
                                   &weights.token_embedding));
  for (int32_t idx = 0; idx < config.num_layers; ++idx) {
    LayerWeights layer;
    LD_RETURN_IF_ERROR(find_layer(&finder, config, idx, &layer));
    weights.layers.push_back(layer);
  }
  LD_RETURN_IF_ERROR(finder.vector("output_norm.weight", config.hidden_dim, &weights.output_norm));
  if (file.find_tensor("output.weight") != nullptr) {
    LD_RETURN_IF_ERROR(
        finder.matrix("output.weight", config.vocab_size, config.hidden_dim, &weights.output));
  } else {
    weights.output = weights.token_embedding;
  }
  if (file.find_tensor("rope_freqs.weight") != nullptr) {
    LD_RETURN_IF_ERROR(
        finder.vector("rope_freqs.weight", config.rope_dim / 2, &weights.rope_divisors));
  }
  LD_RETURN_IF_ERROR(finder.check_all_used());
  return weights;
}

std::vector<double> rope_frequencies(const ModelConfig& config, const float* divisors) {
  std::vector<double> frequencies(static_cast<size_t>(config.rope_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / config.rope_dim;
    const double divisor = divisors == nullptr ? 1.0 : divisors[i];
    frequencies[i] =
        std::pow(config.rope_freq_base, exponent) * config.rope_position_scale / divisor;
  }
  return frequencies;
}

}  // namespace longdecode::runner
