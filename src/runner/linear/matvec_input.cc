#include "runner/linear/matvec_input.h"

#include "runner/linear/matvec_kernels.h"

namespace longdecode::runner {

MatvecIsa best_matvec_isa() {
  return cpu_runs_matvec_vnni() ? MatvecIsa::kAvx512Vnni : MatvecIsa::kPortable;
}

XForms x_form(GgmlType type, MatvecIsa isa) {
  if (ggml_type_info(type).block_weights == 1) return 0;
  if (isa == MatvecIsa::kPortable) return kXInt16;
  return type == GgmlType::kQ4_0 || type == GgmlType::kQ4_1 ? kXNibbles : kXBytes;
}

void MatvecInput::set(const float* x, int64_t num_x, int64_t num_cols, XForms forms) {
  x_ = x;
  num_x_ = num_x;
  num_cols_ = num_cols;
  // Past the last block there are zeros, for vectors that reach beyond it.
  stride_ = num_cols / kBlockWeights + kMaxFloatLanes;
  const auto num_floats = static_cast<size_t>(num_x * stride_);
  if ((forms & (kXInt16 | kXBytes)) != 0) sums_.assign(num_floats, 0.0f);
  if ((forms & kXInt16) != 0) {
    q_.resize(static_cast<size_t>(num_x * num_cols));
    scales_.assign(num_floats, 0.0f);
    for (int64_t i = 0; i < num_x; ++i) {
      pack_int16(this->x(i), num_cols, q_.data() + i * num_cols, scales_.data() + i * stride_,
                 sums_.data() + i * stride_);
    }
  }
  if ((forms & kXBytes) != 0) {
    num_bytes_ = (num_cols + 63) / 64;
    bytes_.resize(static_cast<size_t>(num_x * num_bytes_));
    for (int64_t i = 0; i < num_x; ++i) {
      pack_bytes(this->x(i), num_cols, bytes_.data() + i * num_bytes_, sums_.data() + i * stride_);
    }
  }
  if ((forms & kXNibbles) != 0) {
    num_nibbles_ = (num_cols + 127) / 128;
    nibbles_.resize(static_cast<size_t>(num_x * num_nibbles_));
    for (int64_t i = 0; i < num_x; ++i) {
      pack_nibbles(this->x(i), num_cols, nibbles_.data() + i * num_nibbles_);
    }
  }
}

}  // namespace longdecode::runner
