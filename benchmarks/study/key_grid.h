// Key grids that the study compares: how the step and the zero of a channel of a page are chosen,
// and how wide the residual's own grid is.
//
// Step d and zero z are rounded as in the product's format (bf16 upwards; fp16 in units of the
// step), and a grid covers every key of its page:
//   code = floor((k - z) / d + 2) clamped to 0..3,      scan value  = z + d * (code - 1.5)
//   residual = floor((k - scan value) / (w d) * 256 + 128), exact value = scan value +
//   w d * (residual + 0.5 - 128) / 256, w the residual_span
// A step smaller than a quarter of the range clips: keys beyond 2 d have the outer code, and w > 1
// lets the residual reach them, at w times the error of the exact value.
#ifndef LONGDECODE_BENCHMARKS_STUDY_KEY_GRID_H_
#define LONGDECODE_BENCHMARKS_STUDY_KEY_GRID_H_

#include <cstdint>
#include <string>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::study {

enum class StepRule {
  kRange,       // the smallest step without clipping
  kDeviation,   // deviations * the page's standard deviation, if the residual then covers the page
  kLeastError,  // step and zero by search for the least mean square error of the scan value
};
enum class ZeroRule { kMidrange, kMean };

struct GridVariant {
  std::string name;
  StepRule step = StepRule::kRange;
  ZeroRule zero = ZeroRule::kMidrange;
  double deviations = 1.0;
  double residual_span = 1.0;
  bool production = false;  // quantised by the product (KvCache::append), not by this file
  bool query_8bit = false;  // fold and round the query as the product's scan does
};

// All variants of the study, the product's first.
std::vector<GridVariant> grid_variants();

// One page of one kv head on its grid. Values are offsets from the zero, channel after channel.
struct PageGrid {
  std::vector<double> step;  // [dim]
  std::vector<double> zero;  // [dim] z
  std::vector<float> codes;  // [dim, page_size] code - 1.5
  std::vector<float> exact;  // [dim, page_size] exact value - z
};

// keys [dim, page_size].
PageGrid quantize_page(const GridVariant& variant, const float* keys, int32_t dim,
                       int32_t page_size);

// The full pages of one kv head as the product stores them. keys [num_tokens, dim].
Result<std::vector<PageGrid>> quantize_by_product(const std::vector<float>& keys, int32_t dim,
                                                  int32_t page_size);

}  // namespace longdecode::study

#endif  // LONGDECODE_BENCHMARKS_STUDY_KEY_GRID_H_
