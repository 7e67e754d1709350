#include "runner/sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::runner {
namespace {

Status validate(const SamplerOptions& options) {
  if (!(options.temperature >= 0.0f) || std::isinf(options.temperature)) {
    return invalid_argument("temperature is {}; it must be finite and >= 0", options.temperature);
  }
  if (options.top_k < 0) {
    return invalid_argument("top_k is {}; it must be >= 0 (0: all tokens)", options.top_k);
  }
  if (!(options.top_p >= 0.0f && options.top_p <= 1.0f)) {
    return invalid_argument("top_p is {}; it must be within 0 and 1", options.top_p);
  }
  return {};
}

// exp((logit - max) / temperature); with max = +infinity the +infinite logits share everything.
double weight(float logit, float max, double temperature) {
  if (std::isinf(max)) return logit == max ? 1.0 : 0.0;
  return std::exp((double{logit} - double{max}) / temperature);
}

}  // namespace

Result<Sampler> Sampler::create(const SamplerOptions& options) {
  LD_RETURN_IF_ERROR(validate(options));
  return Sampler(options);
}

Result<int32_t> Sampler::sample(std::span<const float> logits) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  candidates_.clear();
  Candidate best{kLowest, -1};
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > kLowest)) continue;  // NaN, too
    const Candidate candidate{logits[i], static_cast<int32_t>(i)};
    if (best.id < 0 || candidate.logit > best.logit) best = candidate;
    if (options_.temperature > 0.0f) candidates_.push_back(candidate);
  }
  if (best.id < 0) {
    return invalid_argument("none of the {} logits is a number above -infinity", logits.size());
  }
  if (options_.temperature == 0.0f) return best.id;
  keep_top_k();
  keep_top_p();
  return draw();
}

void Sampler::keep_top_k() {
  const auto larger = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  const size_t keep = options_.top_k == 0
                          ? candidates_.size()
                          : std::min(candidates_.size(), static_cast<size_t>(options_.top_k));
  const auto end = candidates_.begin() + static_cast<int64_t>(keep);
  std::partial_sort(candidates_.begin(), end, candidates_.end(), larger);
  candidates_.resize(keep);
}

void Sampler::keep_top_p() {
  if (options_.top_p >= 1.0f) return;
  double total = 0.0;
  weights_.clear();
  for (const Candidate& candidate : candidates_) {
    weights_.push_back(weight(candidate.logit, candidates_[0].logit, 1.0));
    total += weights_.back();
  }
  double sum = 0.0;
  size_t keep = 0;
  do {
    sum += weights_[keep++];
  } while (keep < candidates_.size() && sum < double{options_.top_p} * total);
  candidates_.resize(keep);
}

int32_t Sampler::draw() {
  double total = 0.0;
  weights_.clear();
  for (const Candidate& candidate : candidates_) {
    weights_.push_back(weight(candidate.logit, candidates_[0].logit, options_.temperature));
    total += weights_.back();
  }
  // 53 bits, not std::uniform_real_distribution: that one differs between standard libraries.
  const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;
  double left = uniform * total;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    left -= weights_[i];
    if (left < 0.0) return candidates_[i].id;
  }
  return candidates_[0].id;  // rounding left nothing over
}

}  // namespace longdecode::runner
