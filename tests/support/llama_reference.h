// A forward pass of llama, qwen2 and qwen3 in double precision, plain loops, from the model's
// description.
#ifndef LONGDECODE_TESTS_SUPPORT_LLAMA_REFERENCE_H_
#define LONGDECODE_TESTS_SUPPORT_LLAMA_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "runner/model/session.h"
#include "runner/model/weights.h"
#include "tests/support/random_weights.h"

namespace longdecode::tests {

class LlamaReference {
 public:
  using Vector = std::vector<double>;

  explicit LlamaReference(const runner::Model& model)
      : config_(model.config()), weights_(model.weights()), layers_(weights_.layers.size()) {}

  // Appends a token and returns its logits.
  Vector next(int32_t token) {
    const auto row = decode(weights_.token_embedding).begin() + token * config_.hidden_dim;
    Vector x(row, row + config_.hidden_dim);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const runner::LayerWeights& w = weights_.layers[l];
      const Vector a = attention(norm(x, w.attn_norm), w, &layers_[l]);
      const Vector projected = multiply(w.attn_output, a);
      for (size_t i = 0; i < x.size(); ++i) x[i] += projected[i];
      const Vector normed = norm(x, w.ffn_norm);
      Vector gate = multiply(w.ffn_gate, normed);
      const Vector up = multiply(w.ffn_up, normed);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
      const Vector down = multiply(w.ffn_down, gate);
      for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
    }
    ++position_;
    return multiply(weights_.output, norm(x, weights_.output_norm));
  }

 private:
  struct Cache {
    std::vector<Vector> k, v;  // per token
  };

  // The weights of a matrix, decoded once.
  const Vector& decode(const runner::Matrix& m) {
    Vector& weights = decoded_[m.data];
    if (weights.empty()) {
      for (int64_t r = 0; r < m.num_rows; ++r) {
        for (int64_t c = 0; c < m.num_cols; ++c) {
          weights.push_back(weight_at(m.type, m.row(r), c));
        }
      }
    }
    return weights;
  }
  Vector multiply(const runner::Matrix& m, const Vector& x) {
    const Vector& weights = decode(m);
    Vector y(size_t(m.num_rows));
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += weights[r * x.size() + c] * x[c];
    }
    return y;
  }
  Vector norm(const Vector& x, const float* weight) const {
    double squares = 0.0;
    for (const double value : x) squares += value * value;
    const double scale = 1.0 / std::sqrt(squares / double(x.size()) + double(config_.rms_eps));
    Vector out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * double(weight[i]);
    return out;
  }
  static void add(const float* bias, Vector* x) {
    for (size_t i = 0; bias != nullptr && i < x->size(); ++i) (*x)[i] += double(bias[i]);
  }
  void norm_heads(const float* weight, Vector* heads) const {
    const auto dim = static_cast<std::ptrdiff_t>(config_.head_dim);
    if (weight == nullptr) return;
    for (auto head = heads->begin(); head != heads->end(); head += dim) {
      const Vector normed = norm(Vector(head, head + dim), weight);
      std::copy(normed.begin(), normed.end(), head);
    }
  }
  void rotate(Vector* heads) const {
    for (size_t start = 0; start < heads->size(); start += size_t(config_.head_dim)) {
      for (int32_t i = 0; i < config_.rope_dim / 2; ++i) {
        double angle = double(position_) * config_.rope_position_scale *
                       std::pow(config_.rope_freq_base, -2.0 * i / config_.rope_dim);
        if (weights_.rope_divisors != nullptr) angle /= double(weights_.rope_divisors[i]);
        const bool adjacent = config_.rope_pairs == runner::RopePairs::kAdjacent;
        const int32_t second = adjacent ? 2 * i + 1 : i + config_.rope_dim / 2;
        double& a = (*heads)[start + size_t(adjacent ? 2 * i : i)];
        double& b = (*heads)[start + size_t(second)];
        const double rotated = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = rotated;
      }
    }
  }
  Vector attention(const Vector& x, const runner::LayerWeights& w, Cache* cache) {
    Vector q = multiply(w.q, x);
    Vector k = multiply(w.k, x);
    Vector v = multiply(w.v, x);
    add(w.q_bias, &q);
    add(w.k_bias, &k);
    add(w.v_bias, &v);
    norm_heads(w.q_norm, &q);
    norm_heads(w.k_norm, &k);
    rotate(&q);
    rotate(&k);
    cache->k.push_back(k);
    cache->v.push_back(v);
    const auto dim = size_t(config_.head_dim);
    Vector out(q.size());
    for (int32_t head = 0; head < config_.num_q_heads; ++head) {
      const size_t q_at = size_t(head) * dim;
      const size_t kv_at = size_t(head / (config_.num_q_heads / config_.num_kv_heads)) * dim;
      Vector scores;
      double max = -INFINITY;
      for (const Vector& key : cache->k) {
        double score = 0.0;
        for (size_t i = 0; i < dim; ++i) score += q[q_at + i] * key[kv_at + i];
        scores.push_back(score / std::sqrt(double(dim)));
        max = std::max(max, scores.back());
      }
      double sum = 0.0;
      for (double& score : scores) sum += score = std::exp(score - max);
      for (size_t j = 0; j < scores.size(); ++j) {
        for (size_t i = 0; i < dim; ++i) out[q_at + i] += scores[j] / sum * cache->v[j][kv_at + i];
      }
    }
    return out;
  }

  const runner::ModelConfig& config_;
  const runner::ModelWeights& weights_;
  std::vector<Cache> layers_;
  std::map<const uint8_t*, Vector> decoded_;
  int64_t position_ = 0;
};

// Root mean square of the difference over that of the reference.
template <typename A>
double relative_error(const A& actual, const std::vector<double>& expected) {
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = double(actual[i]) - expected[i];
    error += difference * difference;
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

}  // namespace longdecode::tests

#endif  // LONGDECODE_TESTS_SUPPORT_LLAMA_REFERENCE_H_
