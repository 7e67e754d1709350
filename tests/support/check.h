// Compares a run with the reference. The tolerances are derived:
//   |o - ref| <= u_out |ref| + (2 E + P + W) sum_j p_j |v_j| + F,
//   |lse - ref| <= E + P + 2^-22 |ref|
//   E = u_32 (dim / 8 + 16) max_j softmax_scale sum_c |q_c| (|k_jc| + 2 d_c): a dot product in fp32
//       with 8 or more partial sums, in the terms that a kernel adds up (d_c: the 2-bit step, 0 if
//       the key is plain);
//   P = 2^-20 + u_32 sqrt(kv_len): exp, and the fp32 sums over the tokens;
//   W = weight_unit of the outputs, where a kernel rounds its weights p_j to 16 bits; F =
//       weight_floor kv_len max |v|, those that are subnormal then.
// u is half a unit in the last place: u_32 of fp32, u_out of the dtype of O.
#ifndef LONGDECODE_TESTS_SUPPORT_CHECK_H_
#define LONGDECODE_TESTS_SUPPORT_CHECK_H_

#include <string>
#include <vector>

#include "tests/support/paged_problem.h"
#include "tests/support/run.h"

namespace longdecode::testing {

// What is wrong with the outputs of the problem, empty when nothing is: status, damage, NaN and
// infinity, O and lse against attention over the stored keys (FFD: of the tiles that the run says
// it attended), and for FFD the tiles, the pseudo-max and the statistics.
std::string check(const PagedProblem& problem, const Outputs& outputs);

// Builds the problem, runs `fn`, then checks: empty or the faults with a repro line.
std::string run_and_check(const ProblemSpec& spec, const DecodeFn& fn);
// The same on the library.
std::string run_and_check(const ProblemSpec& spec);
std::string run_and_check(const std::vector<ProblemSpec>& specs);

// The same bits in O and lse (and tiles) of the same problem, or what differs.
std::string same_bits(const Outputs& a, const Outputs& b);
// The same for sequence a_idx of a and sequence b_idx of b.
std::string same_bits(const Outputs& a, int32_t a_idx, const Outputs& b, int32_t b_idx);

// Case 4 of two sequences that share their first two pages: both are right, and when sequence 1
// grows to longer_kv_len tokens, the bits of sequence 0 stay. Empty, or what is wrong.
std::string check_shared_prefix(ProblemSpec spec, int32_t longer_kv_len);

}  // namespace longdecode::testing

#endif  // LONGDECODE_TESTS_SUPPORT_CHECK_H_
