// y = W x for one or a few x, reading W's blocks in place: decode is bound by reading weights.
#ifndef LONGDECODE_RUNNER_LINEAR_MATVEC_H_
#define LONGDECODE_RUNNER_LINEAR_MATVEC_H_

#include <cstdint>
#include <span>

#include "runner/linear/matrix.h"
#include "runner/linear/matvec_input.h"

namespace longdecode::runner {

// One product of a call: y [num_x, w.num_rows], contiguous.
struct Product {
  const Matrix* w = nullptr;
  float* y = nullptr;
};

// Rows [begin, end) of a product, in the calling thread. `input` is packed for w's type.
void multiply_rows(const Product& product, const MatvecInput& input, int64_t begin, int64_t end);

// All products of one x in a single parallel region: a region costs microseconds, as much as a
// small product.
void matvec(std::span<const Product> products, const MatvecInput& input, int32_t num_threads);

// Row `index` of `count` parts that num_rows rows are cut into; index 0 .. count.
inline int64_t part_begin(int64_t num_rows, int64_t index, int64_t count) {
  return num_rows * index / count;
}

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_MATVEC_H_
