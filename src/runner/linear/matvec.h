// y = W x for one or a few x, reading W's blocks in place: decode is bound by reading weights.
#ifndef LONGDECODE_RUNNER_LINEAR_MATVEC_H_
#define LONGDECODE_RUNNER_LINEAR_MATVEC_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runner/linear/matrix.h"

namespace longdecode::runner {

inline constexpr int64_t kMaxFloatLanes = 8;  // of the vectors used here

// One product of a call: y [num_x, w.num_rows], contiguous.
struct Product {
  const Matrix* w = nullptr;
  float* y = nullptr;
};

// The x of a call, prepared for quantised weights: each 32 values become int16 with an fp32 scale.
// 16 bits, not the usual 8: a 16-bit multiply-add is as fast here, since a block has its own scale
// anyway, and its rounding (2^-16 of a block's largest value) disappears beside the weights' own.
class MatvecInput {
 public:
  // x [num_x, num_cols], kept by reference; num_cols is a multiple of 32 when quantize is true.
  void set(const float* x, int64_t num_x, int64_t num_cols, bool quantize);

  int64_t num_x() const { return num_x_; }
  int64_t num_cols() const { return num_cols_; }
  const float* x(int64_t index) const { return x_ + index * num_cols_; }
  const int16_t* q(int64_t index) const { return q_.data() + index * num_cols_; }
  // Per block of 32: the scale, and the sum of the quantised values times the scale.
  const float* scales(int64_t index) const { return scales_.data() + index * stride_; }
  const float* sums(int64_t index) const { return sums_.data() + index * stride_; }

 private:
  const float* x_ = nullptr;
  int64_t num_x_ = 0;
  int64_t num_cols_ = 0;
  int64_t stride_ = 0;  // of scales and sums
  std::vector<int16_t> q_;
  std::vector<float> scales_;
  std::vector<float> sums_;
};

// All products of one x in a single parallel region: a region costs microseconds, as much as a
// small product. `input` is quantised when any w is.
void matvec(std::span<const Product> products, const MatvecInput& input, int32_t num_threads);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_MATVEC_H_
