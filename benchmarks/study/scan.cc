#include "benchmarks/study/scan.h"

#include <algorithm>
#include <cmath>

#include "base/float_convert.h"

namespace longdecode::study {

void add_weighted(const std::vector<float>& weights, const float* columns, int64_t count,
                  float* sums) {
  for (size_t c = 0; c < weights.size(); ++c) {
    const float weight = weights[c];
    const float* column = columns + static_cast<int64_t>(c) * count;
    for (int64_t t = 0; t < count; ++t) sums[t] += weight * column[t];
  }
}

PageScores score_page(const GridVariant& variant, const PageGrid& page, const std::vector<float>& q,
                      bool want_stored) {
  const size_t dim = q.size();
  const size_t page_size = page.codes.size() / dim;
  PageScores scores;
  double of_zero = 0.0;
  double variance = 0.0;
  float largest = 0.0f;
  std::vector<float> folded(dim);
  for (size_t c = 0; c < dim; ++c) {
    of_zero += static_cast<double>(q[c]) * page.zero[c];
    folded[c] = q[c] * static_cast<float>(page.step[c]);
    variance += static_cast<double>(folded[c]) * folded[c] / 12.0;
    largest = std::max(largest, std::fabs(folded[c]));
  }
  scores.sigma = std::sqrt(variance);
  if (variant.query_8bit && largest > 0.0f) {
    const float unit = largest / 127.0f;
    for (float& value : folded) value = unit * std::round(value / unit);
  }
  // The offsets from the zero are small: fp32 sums, whatever bias the keys have.
  std::vector<float> sums(page_size, 0.0f);
  add_weighted(folded, page.codes.data(), static_cast<int64_t>(page_size), sums.data());
  scores.scan.resize(page_size);
  for (size_t t = 0; t < page_size; ++t) scores.scan[t] = of_zero + sums[t];
  if (!want_stored) return scores;
  std::fill(sums.begin(), sums.end(), 0.0f);
  add_weighted(q, page.exact.data(), static_cast<int64_t>(page_size), sums.data());
  scores.stored.resize(page_size);
  for (size_t t = 0; t < page_size; ++t) scores.stored[t] = of_zero + sums[t];
  return scores;
}

NeedleScan scan_needle(const GridVariant& variant, std::vector<float> page_keys, int32_t row,
                       const std::vector<float>& q, double target) {
  const size_t dim = q.size();
  const size_t page_size = page_keys.size() / dim;
  const auto at = [&](size_t c) -> float& {
    return page_keys[c * page_size + static_cast<size_t>(row)];
  };
  double score = 0.0;
  double norm2 = 0.0;
  for (size_t c = 0; c < dim; ++c) {
    score += static_cast<double>(q[c]) * at(c);
    norm2 += static_cast<double>(q[c]) * q[c];
  }
  for (size_t c = 0; c < dim; ++c) {
    const double moved = at(c) + (target - score) / norm2 * q[c];
    at(c) = f16_to_f32(f32_to_f16(static_cast<float>(moved)));
  }
  const PageGrid page = quantize_page(variant, page_keys.data(), static_cast<int32_t>(dim),
                                      static_cast<int32_t>(page_size));
  const PageScores scores = score_page(variant, page, q, false);
  return {scores.scan[static_cast<size_t>(row)], scores.sigma};
}

}  // namespace longdecode::study
