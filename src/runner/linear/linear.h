// The runner's matrix products: in-place blocks for decode, dequantised panels for prefill.
#ifndef LONGDECODE_RUNNER_LINEAR_LINEAR_H_
#define LONGDECODE_RUNNER_LINEAR_LINEAR_H_

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "longdecode/status.h"
#include "runner/linear/gemm.h"
#include "runner/linear/matvec.h"

namespace longdecode::runner {

// Up to this many x the products read W in place; with more, dequantising W pays.
inline constexpr int64_t kMaxMatvecX = 4;

// Not for concurrent use.
class Linear {
 public:
  static Result<Linear> create(int32_t num_threads);

  // y = W x for every product: x [num_x, num_cols] contiguous, all w.num_cols equal to num_cols.
  Status run(std::initializer_list<Product> products, const float* x, int64_t num_x,
             int64_t num_cols);

 private:
  Linear(Gemm gemm, int32_t num_threads) : gemm_(std::move(gemm)), num_threads_(num_threads) {}
  Gemm gemm_;
  MatvecInput input_;
  int32_t num_threads_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_LINEAR_H_
