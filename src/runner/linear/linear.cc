#include "runner/linear/linear.h"

#include <span>
#include <utility>

#include "base/status_macros.h"

namespace longdecode::runner {

Result<Linear> Linear::create(int32_t num_threads) {
  LD_ASSIGN_OR_RETURN(Gemm gemm, Gemm::create(num_threads));
  return Linear(std::move(gemm), num_threads);
}

Status Linear::run(std::initializer_list<Product> products, const float* x, int64_t num_x,
                   int64_t num_cols) {
  if (num_x > kMaxMatvecX) {
    gemm_.set_x(x, num_x, num_cols);
    for (const Product& product : products) LD_RETURN_IF_ERROR(gemm_.run(*product.w, product.y));
    return Status();
  }
  XForms forms = 0;
  for (const Product& product : products) forms |= x_form(product.w->type, input_.isa());
  input_.set(x, num_x, num_cols, forms);
  matvec(std::span(products.begin(), products.size()), input_, num_threads_);
  return Status();
}

}  // namespace longdecode::runner
