// Top-delta selection in fp64 over the stored keys (the maths of FfdOptions in attention.h).
#ifndef LONGDECODE_REF_FFD_H_
#define LONGDECODE_REF_FFD_H_

#include <cstdint>
#include <vector>

#include "longdecode/attention.h"
#include "ref/attention.h"

namespace longdecode::ref {

struct SelectRule {
  // true: by the exact score of the stored keys, no margin. false: by the 2-bit score + margin.
  bool exact = false;
  // Multiple of query_error_bound() that is added to the 2-bit score. -1 and +1 enclose what a
  // kernel that quantises the query to 8 bits per page may select.
  double query_errors = 0.0;
};

struct Selection {
  TileSet tiles;
  std::vector<double> pseudo_max;  // m~ [query_len, num_q_heads]
};

// problem.kv must be &kv.
Selection select(const AttentionProblem& problem, const PagedSource& kv, const FfdOptions& options,
                 const SelectRule& rule);

// Always attended by the query token, when visible: sink, recent, not yet quantised.
bool always_attended(const AttentionProblem& problem, const PagedSource& kv,
                     const FfdOptions& options, int32_t query_idx, int64_t token);

// Margins in nats of one query row against one page, given the page's 2-bit steps:
// standard deviation of the 2-bit noise, softmax_scale * sqrt(sum_c q_c^2 d_c^2 / 12);
double noise_sigma(const double* q, const double* steps, int32_t dim, double softmax_scale);
// largest |scan - exact score|, softmax_scale * sum_c |q_c| d_c (1/2 - 1/512);
double scan_error_bound(const double* q, const double* steps, int32_t dim, double softmax_scale);
// and the largest change of the 2-bit score when q_c d_c is rounded to multiples of
// max_c |q_c d_c| / 127: a code is at most 1.5 steps from the zero.
double query_error_bound(const double* q, const double* steps, int32_t dim, double softmax_scale);

// Tokens that some query row of the kv head selects by exact score (or always attends) and whose
// tile is not in `tiles`, summed over kv heads.
int64_t count_missed_exact(const AttentionProblem& problem, const PagedSource& kv,
                           const FfdOptions& options, const TileSet& tiles);

}  // namespace longdecode::ref

#endif  // LONGDECODE_REF_FFD_H_
