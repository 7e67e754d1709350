#include "runner/model/transformer.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "runner/model/elementwise.h"

namespace longdecode::runner {
namespace {

// Adds the seconds of its life to *seconds.
class AddSeconds {
 public:
  explicit AddSeconds(double* seconds) : seconds_(seconds) {}
  ~AddSeconds() {
    *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  AddSeconds(const AddSeconds&) = delete;
  AddSeconds& operator=(const AddSeconds&) = delete;

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Result<Transformer> Transformer::create(const ModelConfig& config, const ModelWeights& weights,
                                        int64_t max_tokens, int32_t num_threads) {
  LD_ASSIGN_OR_RETURN(Linear linear, Linear::create(num_threads));
  return Transformer(config, weights, max_tokens, num_threads, std::move(linear));
}

Transformer::Transformer(const ModelConfig& config, const ModelWeights& weights, int64_t max_tokens,
                         int32_t num_threads, Linear linear)
    : config_(&config),
      weights_(&weights),
      num_threads_(num_threads),
      linear_(std::move(linear)),
      token_step_(config, weights, num_threads, best_matvec_isa()),
      rope_frequencies_(rope_frequencies(config, weights.rope_divisors)) {
  const auto resize = [max_tokens](std::vector<float>* buffer, int64_t dim) {
    buffer->resize(static_cast<size_t>(max_tokens * dim));
  };
  for (auto* buffer : {&cos_, &sin_}) resize(buffer, config.rope_dim / 2);
  for (auto* buffer : {&x_, &normed_, &projected_}) resize(buffer, config.hidden_dim);
  for (auto* buffer : {&q_, &o_}) resize(buffer, config.q_dim());
  for (auto* buffer : {&k_, &v_}) resize(buffer, config.kv_dim());
  for (auto* buffer : {&gate_, &up_}) resize(buffer, config.ffn_dim);
}

Status Transformer::run(std::span<const int32_t> tokens, int64_t first_position,
                        const AttentionFunction& attention, float* logits) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  embed(tokens);
  fill_rope_table(num_tokens, first_position);
  return num_tokens == 1 ? run_one(attention, logits) : run_many(num_tokens, attention, logits);
}

Status Transformer::run_one(const AttentionFunction& attention, float* logits) {
  const TokenActivations activations{x_.data(), q_.data(),    k_.data(),  v_.data(),
                                     o_.data(), gate_.data(), up_.data(), logits};
  {
    const AddSeconds timer(&linear_s_);
    token_step_.start(activations);
  }
  for (int32_t layer_idx = 0; layer_idx < config_->num_layers; ++layer_idx) {
    LD_RETURN_IF_ERROR(attend(layer_idx, 1, attention));
    const AddSeconds timer(&linear_s_);
    token_step_.finish_layer(layer_idx, activations);
  }
  return Status();
}

Status Transformer::run_many(int64_t num_tokens, const AttentionFunction& attention,
                             float* logits) {
  for (int32_t layer_idx = 0; layer_idx < config_->num_layers; ++layer_idx) {
    LD_RETURN_IF_ERROR(run_attention(layer_idx, num_tokens, attention));
    LD_RETURN_IF_ERROR(run_ffn(weights_->layers[static_cast<size_t>(layer_idx)], num_tokens));
  }
  if (logits == nullptr) return Status();
  const int64_t hidden = config_->hidden_dim;
  rms_norm(x_.data() + (num_tokens - 1) * hidden, weights_->output_norm, hidden, config_->rms_eps,
           normed_.data());
  return multiply({{&weights_->output, logits}}, normed_.data(), 1, hidden);
}

void Transformer::embed(std::span<const int32_t> tokens) {
  for (size_t t = 0; t < tokens.size(); ++t) {
    dequantize_row(weights_->token_embedding, tokens[t],
                   x_.data() + static_cast<int64_t>(t) * config_->hidden_dim);
  }
}

void Transformer::fill_rope_table(int64_t num_tokens, int64_t first_position) {
  const auto half = static_cast<int64_t>(rope_frequencies_.size());
#pragma omp parallel for num_threads(num_threads_) schedule(static) if (num_tokens > 8)
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(first_position + t) * rope_frequencies_[size_t(i)];
      cos_[static_cast<size_t>(t * half + i)] = static_cast<float>(std::cos(angle));
      sin_[static_cast<size_t>(t * half + i)] = static_cast<float>(std::sin(angle));
    }
  }
}

void Transformer::normalize(int64_t num_tokens, const float* weight) {
  const int64_t hidden = config_->hidden_dim;
#pragma omp parallel for num_threads(num_threads_) schedule(static) if (num_tokens > 8)
  for (int64_t t = 0; t < num_tokens; ++t) {
    rms_norm(x_.data() + t * hidden, weight, hidden, config_->rms_eps, normed_.data() + t * hidden);
  }
}

// Bias, norm and RoPE of one token's products.
void Transformer::finish_qkv(const LayerWeights& layer, int64_t token) {
  float* q = q_.data() + token * config_->q_dim();
  float* k = k_.data() + token * config_->kv_dim();
  if (layer.q_bias != nullptr) add(q, layer.q_bias, config_->q_dim());
  if (layer.k_bias != nullptr) add(k, layer.k_bias, config_->kv_dim());
  if (layer.v_bias != nullptr) {
    add(v_.data() + token * config_->kv_dim(), layer.v_bias, config_->kv_dim());
  }
  const int64_t half = config_->rope_dim / 2;
  const auto finish_heads = [&](float* heads, int64_t num_heads, const float* norm) {
    for (int64_t h = 0; norm != nullptr && h < num_heads; ++h) {
      float* head = heads + h * config_->head_dim;
      rms_norm(head, norm, config_->head_dim, config_->rms_eps, head);
    }
    const auto rotate =
        config_->rope_pairs == RopePairs::kAdjacent ? rotate_adjacent : rotate_halves;
    rotate(heads, cos_.data() + token * half, sin_.data() + token * half, num_heads,
           config_->head_dim, config_->rope_dim);
  };
  finish_heads(q, config_->num_q_heads, layer.q_norm);
  finish_heads(k, config_->num_kv_heads, layer.k_norm);
}

// From the products q, k, v to attention's output.
Status Transformer::attend(int32_t layer_idx, int64_t num_tokens,
                           const AttentionFunction& attention) {
  const LayerWeights& layer = weights_->layers[static_cast<size_t>(layer_idx)];
#pragma omp parallel for num_threads(num_threads_) schedule(static) if (num_tokens > 8)
  for (int64_t t = 0; t < num_tokens; ++t) finish_qkv(layer, t);
  return attention({layer_idx, num_tokens, q_.data(), k_.data(), v_.data(), o_.data()});
}

Status Transformer::multiply(std::initializer_list<Product> products, const float* x, int64_t num_x,
                             int64_t num_cols) {
  const AddSeconds timer(&linear_s_);
  return linear_.run(products, x, num_x, num_cols);
}

Status Transformer::run_attention(int32_t layer_idx, int64_t num_tokens,
                                  const AttentionFunction& attention) {
  const LayerWeights& layer = weights_->layers[static_cast<size_t>(layer_idx)];
  const int64_t hidden = config_->hidden_dim;
  normalize(num_tokens, layer.attn_norm);
  LD_RETURN_IF_ERROR(multiply({{&layer.q, q_.data()}, {&layer.k, k_.data()}, {&layer.v, v_.data()}},
                              normed_.data(), num_tokens, hidden));
  LD_RETURN_IF_ERROR(attend(layer_idx, num_tokens, attention));
  LD_RETURN_IF_ERROR(
      multiply({{&layer.attn_output, projected_.data()}}, o_.data(), num_tokens, config_->q_dim()));
  add(x_.data(), projected_.data(), num_tokens * hidden);
  return Status();
}

Status Transformer::run_ffn(const LayerWeights& layer, int64_t num_tokens) {
  const int64_t hidden = config_->hidden_dim;
  const int64_t ffn = config_->ffn_dim;
  normalize(num_tokens, layer.ffn_norm);
  LD_RETURN_IF_ERROR(multiply({{&layer.ffn_gate, gate_.data()}, {&layer.ffn_up, up_.data()}},
                              normed_.data(), num_tokens, hidden));
#pragma omp parallel for num_threads(num_threads_) schedule(static) if (num_tokens > 8)
  for (int64_t t = 0; t < num_tokens; ++t) {
    swiglu(gate_.data() + t * ffn, up_.data() + t * ffn, ffn);
  }
  LD_RETURN_IF_ERROR(
      multiply({{&layer.ffn_down, projected_.data()}}, gate_.data(), num_tokens, ffn));
  add(x_.data(), projected_.data(), num_tokens * hidden);
  return Status();
}

}  // namespace longdecode::runner
