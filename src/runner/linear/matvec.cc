#include "runner/linear/matvec.h"

#include <omp.h>

#include <algorithm>

#include "runner/linear/matvec_kernels.h"

namespace longdecode::runner {
namespace {

// One core reads this much in about the time that a parallel region takes.
constexpr int64_t kMinParallelBytes = 64 << 10;

}  // namespace

void multiply_rows(const Product& product, const MatvecInput& input, int64_t begin, int64_t end) {
  if (input.isa() == MatvecIsa::kAvx512Vnni) return multiply_rows_vnni(product, input, begin, end);
  multiply_rows_portable(product, input, begin, end);
}

void matvec(std::span<const Product> products, const MatvecInput& input, int32_t num_threads) {
  int64_t num_rows = 0;
  int64_t num_bytes = 0;
  for (const Product& product : products) {
    num_rows += product.w->num_rows;
    num_bytes += product.w->num_rows * product.w->row_bytes();
  }
#pragma omp parallel num_threads(num_threads) if (num_bytes > kMinParallelBytes)
  {
    // Each thread reads one contiguous stretch of the products' rows laid end to end.
    const int64_t begin = part_begin(num_rows, omp_get_thread_num(), omp_get_num_threads());
    const int64_t end = part_begin(num_rows, omp_get_thread_num() + 1, omp_get_num_threads());
    int64_t first = 0;
    for (const Product& product : products) {
      const int64_t count = product.w->num_rows;
      multiply_rows(product, input, std::clamp(begin - first, int64_t{0}, count),
                    std::clamp(end - first, int64_t{0}, count));
      first += count;
    }
  }
}

}  // namespace longdecode::runner
