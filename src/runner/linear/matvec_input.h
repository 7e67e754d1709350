// The x of a matrix-vector product, prepared for the kernels that read quantised weights.
#ifndef LONGDECODE_RUNNER_LINEAR_MATVEC_INPUT_H_
#define LONGDECODE_RUNNER_LINEAR_MATVEC_INPUT_H_

#include <cstdint>
#include <vector>

#include "runner/linear/matrix.h"

namespace longdecode::runner {

// Both take x as 16-bit integers with a scale per 32 values. kPortable multiplies int16, whatever
// Highway finds. kAvx512Vnni multiplies bytes, x being two of them: its 8-bit multiply-adds do four
// times as much as 16-bit ones, so that the second byte is no loss where memory is the limit, and
// the usual int8 x costs 0.5% of every output (docs/adr/0005-m1-products.md).
enum class MatvecIsa : int32_t { kPortable, kAvx512Vnni };
MatvecIsa best_matvec_isa();  // of this CPU

// The forms of x, as a bit set.
using XForms = uint32_t;
inline constexpr XForms kXInt16 = 1;          // kPortable, all quantised types
inline constexpr XForms kXBytes = 2;          // kAvx512Vnni: Q8_0, Q4_K, Q5_K, Q6_K
inline constexpr XForms kXNibbles = 4;        // kAvx512Vnni: Q4_0, Q4_1
XForms x_form(GgmlType type, MatvecIsa isa);  // 0: fp32 as it is

// q = 256 * high + low, |q| <= 32639, so that both are int8. A "lane" holds 4 products of bytes: an
// int32 of the dot-product instructions. Groups are padded with zeros.
struct alignas(64) XBytes {  // 64 consecutive x
  int8_t high[64];
  int8_t low[64];
  float scale[16];           // per lane: of its block of 32
  int32_t minus32_high[16];  // per lane: -32 times the sum of its 4 bytes
  int32_t minus32_low[16];
};

struct alignas(64) XNibbles {  // 128 consecutive x, in the order of 4 blocks' packed nibbles
  int8_t high[2][64];          // [0]: x 0 .. 15 of each block, [1]: x 16 .. 31 of each
  int8_t low[2][64];
  float scale[16];     // per lane: of its block
  float sum[16];       // per lane: scale times the sum of its 8 q
  int32_t minus8[16];  // per lane: -8 times the sum of its 8 q
};

inline constexpr int64_t kMaxFloatLanes = 8;  // of the portable kernels' vectors

class MatvecInput {
 public:
  explicit MatvecInput(MatvecIsa isa = best_matvec_isa()) : isa_(isa) {}

  // x [num_x, num_cols], kept by reference; num_cols is a multiple of 32 when forms is not 0.
  void set(const float* x, int64_t num_x, int64_t num_cols, XForms forms);

  MatvecIsa isa() const { return isa_; }
  int64_t num_x() const { return num_x_; }
  int64_t num_cols() const { return num_cols_; }
  const float* x(int64_t index) const { return x_ + index * num_cols_; }

  const int16_t* q(int64_t index) const { return q_.data() + index * num_cols_; }
  // Per block of 32: the scale (with kXInt16), and the sum of the quantised values times the scale
  // (with kXInt16 or kXBytes).
  const float* scales(int64_t index) const { return scales_.data() + index * stride_; }
  const float* sums(int64_t index) const { return sums_.data() + index * stride_; }

  const XBytes* bytes(int64_t index) const { return bytes_.data() + index * num_bytes_; }
  const XNibbles* nibbles(int64_t index) const { return nibbles_.data() + index * num_nibbles_; }

 private:
  MatvecIsa isa_;
  const float* x_ = nullptr;
  int64_t num_x_ = 0;
  int64_t num_cols_ = 0;
  int64_t stride_ = 0;       // of scales and sums
  int64_t num_bytes_ = 0;    // groups of an x
  int64_t num_nibbles_ = 0;  // groups of an x
  std::vector<int16_t> q_;
  std::vector<float> scales_;
  std::vector<float> sums_;
  std::vector<XBytes> bytes_;
  std::vector<XNibbles> nibbles_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_MATVEC_INPUT_H_
