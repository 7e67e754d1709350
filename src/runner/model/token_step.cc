#include "runner/model/token_step.h"

#include <omp.h>

#include "runner/model/elementwise.h"

namespace longdecode::runner {
namespace {

// A layer with fewer bytes of weights takes one thread less time than several need to meet.
constexpr int64_t kMinParallelBytes = 64 << 10;

int64_t layer_bytes(const LayerWeights& layer) {
  int64_t num_bytes = 0;
  for (const Matrix* w : {&layer.q, &layer.k, &layer.v, &layer.attn_output, &layer.ffn_gate,
                          &layer.ffn_up, &layer.ffn_down}) {
    num_bytes += w->num_rows * w->row_bytes();
  }
  return num_bytes;
}

}  // namespace

TokenStep::TokenStep(const ModelConfig& config, const ModelWeights& weights, int32_t num_threads,
                     MatvecIsa isa)
    : config_(&config),
      weights_(&weights),
      num_threads_(layer_bytes(weights.layers[0]) < kMinParallelBytes ? 1 : num_threads),
      scratch_(static_cast<size_t>(num_threads_), Scratch(isa)),
      projected_(static_cast<size_t>(config.hidden_dim)),
      barrier_(std::make_unique<SpinBarrier>()) {
  for (Scratch& scratch : scratch_) scratch.normed.resize(static_cast<size_t>(config.hidden_dim));
}

void TokenStep::start(const TokenActivations& t) {
#pragma omp parallel num_threads(num_threads_)
  next_products(0, t, {omp_get_thread_num(), omp_get_num_threads()});
}

void TokenStep::finish_layer(int32_t layer_idx, const TokenActivations& t) {
  const LayerWeights& layer = weights_->layers[static_cast<size_t>(layer_idx)];
#pragma omp parallel num_threads(num_threads_)
  {
    const Part part{omp_get_thread_num(), omp_get_num_threads()};
    attention_output(layer, t, part);
    barrier_->wait(part.count);
    ffn(layer, t, part);
    barrier_->wait(part.count);
    next_products(layer_idx + 1, t, part);
  }
}

void TokenStep::attention_output(const LayerWeights& layer, const TokenActivations& t, Part part) {
  set_input(t.o, config_->q_dim(), {&layer.attn_output}, part);
  multiply_part(layer.attn_output, projected_.data(), part);
  const int64_t begin = part_begin(config_->hidden_dim, part.index, part.count);
  const int64_t end = part_begin(config_->hidden_dim, part.index + 1, part.count);
  add(t.x + begin, projected_.data() + begin, end - begin);
}

void TokenStep::ffn(const LayerWeights& layer, const TokenActivations& t, Part part) {
  set_normed_input(t.x, layer.ffn_norm, {&layer.ffn_gate, &layer.ffn_up}, part);
  multiply_part(layer.ffn_gate, t.gate, part);
  multiply_part(layer.ffn_up, t.up, part);
  int64_t begin = part_begin(config_->ffn_dim, part.index, part.count);
  int64_t end = part_begin(config_->ffn_dim, part.index + 1, part.count);
  swiglu(t.gate + begin, t.up + begin, end - begin);
  barrier_->wait(part.count);
  set_input(t.gate, config_->ffn_dim, {&layer.ffn_down}, part);
  multiply_part(layer.ffn_down, projected_.data(), part);
  begin = part_begin(config_->hidden_dim, part.index, part.count);
  end = part_begin(config_->hidden_dim, part.index + 1, part.count);
  add(t.x + begin, projected_.data() + begin, end - begin);
}

void TokenStep::next_products(int32_t layer_idx, const TokenActivations& t, Part part) {
  if (layer_idx < config_->num_layers) {
    const LayerWeights& layer = weights_->layers[static_cast<size_t>(layer_idx)];
    set_normed_input(t.x, layer.attn_norm, {&layer.q, &layer.k, &layer.v}, part);
    multiply_part(layer.q, t.q, part);
    multiply_part(layer.k, t.k, part);
    multiply_part(layer.v, t.v, part);
  } else if (t.logits != nullptr) {
    set_normed_input(t.x, weights_->output_norm, {&weights_->output}, part);
    multiply_part(weights_->output, t.logits, part);
  }
}

void TokenStep::set_input(const float* x, int64_t num_cols,
                          std::initializer_list<const Matrix*> matrices, Part part) {
  MatvecInput& input = scratch_[static_cast<size_t>(part.index)].input;
  XForms forms = 0;
  for (const Matrix* matrix : matrices) forms |= x_form(matrix->type, input.isa());
  input.set(x, 1, num_cols, forms);
}

void TokenStep::set_normed_input(const float* x, const float* weight,
                                 std::initializer_list<const Matrix*> matrices, Part part) {
  float* normed = scratch_[static_cast<size_t>(part.index)].normed.data();
  rms_norm(x, weight, config_->hidden_dim, config_->rms_eps, normed);
  set_input(normed, config_->hidden_dim, matrices, part);
}

void TokenStep::multiply_part(const Matrix& w, float* y, Part part) {
  multiply_rows({&w, y}, scratch_[static_cast<size_t>(part.index)].input,
                part_begin(w.num_rows, part.index, part.count),
                part_begin(w.num_rows, part.index + 1, part.count));
}

}  // namespace longdecode::runner
