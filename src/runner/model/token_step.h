// A single token's way through the weights: everything between the attentions of two layers is one
// parallel region. At small models and many layers regions would otherwise cost as much as work.
#ifndef LONGDECODE_RUNNER_MODEL_TOKEN_STEP_H_
#define LONGDECODE_RUNNER_MODEL_TOKEN_STEP_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "runner/linear/matvec.h"
#include "runner/linear/spin_barrier.h"
#include "runner/model/config.h"
#include "runner/model/weights.h"

namespace longdecode::runner {

struct TokenActivations {
  float* x = nullptr;       // [hidden_dim], the residual stream
  float* q = nullptr;       // [q_dim]: products alone, no bias, norm or RoPE
  float* k = nullptr;       // [kv_dim]
  float* v = nullptr;       // [kv_dim]
  float* o = nullptr;       // [q_dim], attention's output
  float* gate = nullptr;    // [ffn_dim]
  float* up = nullptr;      // [ffn_dim]
  float* logits = nullptr;  // [vocab_size], or nullptr: none wanted
};

// Not for concurrent use.
class TokenStep {
 public:
  // config and weights outlive the object.
  TokenStep(const ModelConfig& config, const ModelWeights& weights, int32_t num_threads,
            MatvecIsa isa);

  // x -> q, k, v of layer 0.
  void start(const TokenActivations& t);
  // o -> the rest of layer `layer_idx`, and q, k, v of the next one; logits after the last.
  void finish_layer(int32_t layer_idx, const TokenActivations& t);

 private:
  // One thread's share of a region.
  struct Part {
    int32_t index = 0;
    int32_t count = 1;
  };
  // Each thread normalises and packs x for itself: cheaper than meeting once more.
  struct Scratch {
    explicit Scratch(MatvecIsa isa) : input(isa) {}
    MatvecInput input;
    std::vector<float> normed;  // [hidden_dim]
  };

  void attention_output(const LayerWeights& layer, const TokenActivations& t, Part part);
  void ffn(const LayerWeights& layer, const TokenActivations& t, Part part);
  void next_products(int32_t layer_idx, const TokenActivations& t, Part part);
  void set_input(const float* x, int64_t num_cols, std::initializer_list<const Matrix*> matrices,
                 Part part);
  void set_normed_input(const float* x, const float* weight,
                        std::initializer_list<const Matrix*> matrices, Part part);
  void multiply_part(const Matrix& w, float* y, Part part);

  const ModelConfig* config_;
  const ModelWeights* weights_;
  int32_t num_threads_;
  std::vector<Scratch> scratch_;  // [num_threads]
  std::vector<float> projected_;  // [hidden_dim]
  std::unique_ptr<SpinBarrier> barrier_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_TOKEN_STEP_H_
