// Y = X W^T for many x: oneDNN on W dequantised panel by panel.
#ifndef LONGDECODE_RUNNER_LINEAR_GEMM_H_
#define LONGDECODE_RUNNER_LINEAR_GEMM_H_

#include <cstdint>
#include <memory>

#include "longdecode/status.h"
#include "runner/linear/matrix.h"

namespace longdecode::runner {

// Not for concurrent use. Products run in bf16 (fp32 accumulation) where the CPU multiplies bf16,
// in fp32 otherwise.
class Gemm {
 public:
  // kUnavailable when oneDNN cannot start.
  static Result<Gemm> create(int32_t num_threads);
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;
  ~Gemm();

  bool uses_bf16() const;

  // X [num_x, num_cols] contiguous, for the calls of `run` that follow; kept by reference.
  void set_x(const float* x, int64_t num_x, int64_t num_cols);
  // y [num_x, w.num_rows] contiguous. w.num_cols is X's num_cols.
  Status run(const Matrix& w, float* y);

 private:
  struct Impl;
  explicit Gemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_GEMM_H_
