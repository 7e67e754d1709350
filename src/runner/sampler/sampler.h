// Chooses the next token from logits: greedy, or temperature with top-k and top-p.
#ifndef LONGDECODE_RUNNER_SAMPLER_SAMPLER_H_
#define LONGDECODE_RUNNER_SAMPLER_SAMPLER_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::runner {

// Applied in this order, as in llama.cpp: top_k, top_p, temperature.
struct SamplerOptions {
  float temperature = 0.8f;  // >= 0, finite; 0: always the largest logit
  int32_t top_k = 40;        // >= 0; 0: all
  float top_p = 0.95f;       // 0..1; the fewest candidates whose probabilities reach it, at least 1
  uint64_t seed = 0;
};

class Sampler {
 public:
  // kInvalidArgument, naming the option, its value and what is allowed.
  static Result<Sampler> create(const SamplerOptions& options);

  // logits: [vocab_size]; NaN counts as -infinity. kInvalidArgument when no logit is above
  // -infinity. Ties go to the lower id. The same seed and logits give the same tokens anywhere.
  Result<int32_t> sample(std::span<const float> logits);

 private:
  struct Candidate {
    float logit = 0.0f;
    int32_t id = 0;
  };
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}
  void keep_top_k();
  void keep_top_p();
  int32_t draw();

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;  // largest logit first once top_k has run
  std::vector<double> weights_;        // [candidates_.size()]
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_SAMPLER_SAMPLER_H_
