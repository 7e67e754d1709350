// Scores from a page on its grid: the 2-bit scan, the stored keys, and a needle planted in the
// page.
#ifndef LONGDECODE_BENCHMARKS_STUDY_SCAN_H_
#define LONGDECODE_BENCHMARKS_STUDY_SCAN_H_

#include <cstdint>
#include <vector>

#include "benchmarks/study/key_grid.h"

namespace longdecode::study {

inline constexpr double kWeakNeedle = 2.5;  // nats below the pseudo-max

// Adds sum_c weights[c] * columns[c, t] to sums[t], t < count; columns [dim, count].
void add_weighted(const std::vector<float>& weights, const float* columns, int64_t count,
                  float* sums);

struct PageScores {
  std::vector<double> scan;    // [page_size]
  std::vector<double> stored;  // [page_size] of the exact values; empty unless wanted
  double sigma = 0.0;          // deviation of the scan's noise: sqrt(sum_c q_c^2 d_c^2 / 12)
};
// q [dim] times softmax_scale.
PageScores score_page(const GridVariant& variant, const PageGrid& page, const std::vector<float>& q,
                      bool want_stored);

// page_keys [dim, page_size], the softmax's q [dim] times softmax_scale. Moves the key of token
// `row` along q until its score is `target`, quantises the page and scans it: the needle's scan
// score, and the noise's deviation.
struct NeedleScan {
  double score = 0.0;
  double sigma = 0.0;
};
NeedleScan scan_needle(const GridVariant& variant, std::vector<float> page_keys, int32_t row,
                       const std::vector<float>& q, double target);

}  // namespace longdecode::study

#endif  // LONGDECODE_BENCHMARKS_STUDY_SCAN_H_
