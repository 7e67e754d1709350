#include "ref/ffd.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace longdecode::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Exact scores of one kv head, [query_len * group, kv_len]; -infinity where not visible.
std::vector<double> exact_scores(const AttentionProblem& problem, int32_t kv_head) {
  const KvSource& kv = *problem.kv;
  const int32_t group = problem.group();
  const int32_t num_rows = problem.query_len * group;
  std::vector<double> scores(static_cast<size_t>(num_rows * kv.kv_len()), -kInfinity);
  std::vector<double> key(static_cast<size_t>(kv.key_dim()));
  for (int64_t j = 0; j < kv.kv_len(); ++j) {
    kv.key(kv_head, j, key.data());
    for (int32_t r = 0; r < num_rows; ++r) {
      if (!problem.visible(r / group, j)) continue;
      const int64_t row = int64_t{r / group} * problem.num_q_heads + kv_head * group + r % group;
      scores[static_cast<size_t>(r * kv.kv_len() + j)] =
          problem.score(dot(key.data(), problem.q.data() + row * kv.key_dim(), kv.key_dim()));
    }
  }
  return scores;
}

// Scan score + margin of one query row for one token, before the soft cap.
double padded_scan_score(const AttentionProblem& problem, const FfdOptions& options,
                         const SelectRule& rule, const double* q, const double* key,
                         const double* steps) {
  const int32_t dim = problem.kv->key_dim();
  const double scale = problem.softmax_scale;
  double score = scale * dot(key, q, dim);
  if (options.certified) {
    score += scan_error_bound(q, steps, dim, scale);
  } else if (options.margin_sigmas > 0.0f) {
    score += static_cast<double>(options.margin_sigmas) * noise_sigma(q, steps, dim, scale);
  }
  if (rule.query_errors != 0.0) {
    score += rule.query_errors * query_error_bound(q, steps, dim, scale);
  }
  return problem.soft_cap > 0.0 ? problem.soft_cap * std::tanh(score / problem.soft_cap) : score;
}

void select_head(const AttentionProblem& problem, const PagedSource& kv, const FfdOptions& options,
                 const SelectRule& rule, int32_t kv_head, Selection* selection) {
  const int64_t kv_len = kv.kv_len();
  const int32_t group = problem.group();
  const std::vector<double> exact = exact_scores(problem, kv_head);
  std::vector<double> key(static_cast<size_t>(kv.key_dim()));
  std::vector<double> steps(static_cast<size_t>(kv.key_dim()));
  const int32_t num_rows = problem.query_len * group;
  std::vector<double> threshold(static_cast<size_t>(num_rows));
  for (int32_t r = 0; r < num_rows; ++r) {
    double max = -kInfinity;
    for (int64_t j = 0; j < kv_len; ++j) {
      if (!problem.visible(r / group, j)) continue;
      if (!always_attended(problem, kv, options, r / group, j)) continue;
      max = std::max(max, exact[static_cast<size_t>(r * kv_len + j)]);
      selection->tiles.at(kv_head, j / kTileTokens) = 1;
    }
    const int64_t row = int64_t{r / group} * problem.num_q_heads + kv_head * group + r % group;
    selection->pseudo_max[static_cast<size_t>(row)] = max;
    threshold[static_cast<size_t>(r)] = max - static_cast<double>(options.delta);
  }
  for (int64_t j = 0; j < kv.num_quantized_tokens(); ++j) {
    if (!rule.exact) {
      kv.scan_key(kv_head, j, key.data());
      if (j % kv.format().page_size == 0) kv.steps(kv_head, j, steps.data());
    }
    for (int32_t r = 0; r < num_rows; ++r) {
      if (!problem.visible(r / group, j)) continue;
      const int64_t row = int64_t{r / group} * problem.num_q_heads + kv_head * group + r % group;
      const double score = rule.exact ? exact[static_cast<size_t>(r * kv_len + j)]
                                      : padded_scan_score(problem, options, rule,
                                                          problem.q.data() + row * kv.key_dim(),
                                                          key.data(), steps.data());
      if (!(score < threshold[static_cast<size_t>(r)])) {  // NaN is a candidate
        selection->tiles.at(kv_head, j / kTileTokens) = 1;
      }
    }
  }
}

int64_t missed_of_head(const AttentionProblem& problem, const PagedSource& kv,
                       const FfdOptions& options, const TileSet& tiles, int32_t kv_head) {
  const int64_t kv_len = kv.kv_len();
  const int32_t group = problem.group();
  const std::vector<double> exact = exact_scores(problem, kv_head);
  std::vector<uint8_t> wanted(static_cast<size_t>(kv_len), 0);
  for (int32_t r = 0; r < problem.query_len * group; ++r) {
    double max = -kInfinity;
    for (int64_t j = 0; j < kv_len; ++j) {
      if (!problem.visible(r / group, j)) continue;
      if (!always_attended(problem, kv, options, r / group, j)) continue;
      wanted[static_cast<size_t>(j)] = 1;
      max = std::max(max, exact[static_cast<size_t>(r * kv_len + j)]);
    }
    for (int64_t j = 0; j < kv_len; ++j) {
      if (!problem.visible(r / group, j)) continue;
      if (exact[static_cast<size_t>(r * kv_len + j)] >= max - static_cast<double>(options.delta)) {
        wanted[static_cast<size_t>(j)] = 1;
      }
    }
  }
  int64_t missed = 0;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (wanted[static_cast<size_t>(j)] != 0 && !tiles.has(kv_head, j / kTileTokens)) ++missed;
  }
  return missed;
}

}  // namespace

bool always_attended(const AttentionProblem& problem, const PagedSource& kv,
                     const FfdOptions& options, int32_t query_idx, int64_t token) {
  return token < options.sink_tokens || token >= kv.num_quantized_tokens() ||
         token > problem.position(query_idx) - options.recent_tokens;
}

double noise_sigma(const double* q, const double* steps, int32_t dim, double softmax_scale) {
  double sum = 0.0;
  for (int32_t c = 0; c < dim; ++c) sum += q[c] * q[c] * steps[c] * steps[c] / 12.0;
  return softmax_scale * std::sqrt(sum);
}

double scan_error_bound(const double* q, const double* steps, int32_t dim, double softmax_scale) {
  double sum = 0.0;
  for (int32_t c = 0; c < dim; ++c) sum += std::abs(q[c]) * steps[c] * (0.5 - 1.0 / 512.0);
  return softmax_scale * sum;
}

double query_error_bound(const double* q, const double* steps, int32_t dim, double softmax_scale) {
  double max = 0.0;
  for (int32_t c = 0; c < dim; ++c) max = std::max(max, std::abs(q[c]) * steps[c]);
  return softmax_scale * dim * 1.5 * max / 127.0 / 2.0;
}

Selection select(const AttentionProblem& problem, const PagedSource& kv, const FfdOptions& options,
                 const SelectRule& rule) {
  Selection selection;
  selection.tiles = TileSet(kv.num_kv_heads(), kv.kv_len());
  selection.pseudo_max.assign(static_cast<size_t>(problem.query_len * problem.num_q_heads),
                              -kInfinity);
#pragma omp parallel for schedule(dynamic)
  for (int32_t h = 0; h < kv.num_kv_heads(); ++h) {
    select_head(problem, kv, options, rule, h, &selection);
  }
  return selection;
}

int64_t count_missed_exact(const AttentionProblem& problem, const PagedSource& kv,
                           const FfdOptions& options, const TileSet& tiles) {
  int64_t missed = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : missed)
  for (int32_t h = 0; h < kv.num_kv_heads(); ++h) {
    missed += missed_of_head(problem, kv, options, tiles, h);
  }
  return missed;
}

}  // namespace longdecode::ref
