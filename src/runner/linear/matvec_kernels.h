// The kernels behind matvec.h, per instruction set. Only matvec.cc and matvec_input.cc call them.
#ifndef LONGDECODE_RUNNER_LINEAR_MATVEC_KERNELS_H_
#define LONGDECODE_RUNNER_LINEAR_MATVEC_KERNELS_H_

#include <cstdint>

#include "runner/linear/matvec.h"

namespace longdecode::runner {

// Through Highway's dispatch; inputs with kXInt16.
void multiply_rows_portable(const Product& product, const MatvecInput& input, int64_t begin,
                            int64_t end);
void pack_int16(const float* x, int64_t num_cols, int16_t* q, float* scales, float* sums);

// Compiled by target attributes, because Highway 1.0.3 lacks VNNI. Not to be called where
// cpu_runs_matvec_vnni() is false.
bool cpu_runs_matvec_vnni();
void multiply_rows_vnni(const Product& product, const MatvecInput& input, int64_t begin,
                        int64_t end);
void pack_bytes(const float* x, int64_t num_cols, XBytes* groups, float* sums);
void pack_nibbles(const float* x, int64_t num_cols, XNibbles* groups);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_MATVEC_KERNELS_H_
