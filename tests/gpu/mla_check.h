// Compares a workload's results with the fp64 reference.
#ifndef LONGDECODE_TESTS_GPU_MLA_CHECK_H_
#define LONGDECODE_TESTS_GPU_MLA_CHECK_H_

#include <string>

#include "tests/gpu/mla_workload.h"

namespace longdecode::gpu_test {

struct Tolerance {
  double absolute = 0;         // of an output element, or
  double relative = 0;         // of it
  double cosine = 1;           // 1 - cosine of each row
  double relative_rmse = 1;    // of all checked rows together
  double lse_absolute = 1e-6;  // or
  double lse_relative = 8.01 / 65536;
};
// For inputs N(0, 0.1) clamped to 1, and for peaked scores.
Tolerance smooth_tolerance();
Tolerance peaked_tolerance(DType dtype);

struct Outcome {
  bool passed = true;
  std::string failure;       // the first one
  double relative_rmse = 0;  // over the checked rows
  double rmse = 0;
};

// Checks up to max_rows rows (first, last and others spread between them) against the reference,
// and every element of the output: nothing unwritten, no NaN, zeros where nothing is visible.
Outcome check_workload(const MlaWorkload& workload, const Tolerance& tolerance, int32_t max_rows,
                       Mutant mutant = Mutant::kNone);

}  // namespace longdecode::gpu_test

#endif  // LONGDECODE_TESTS_GPU_MLA_CHECK_H_
