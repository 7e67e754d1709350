// A non-owning, strided view of memory on the device that the call runs on.
#ifndef LONGDECODE_TENSOR_H_
#define LONGDECODE_TENSOR_H_

#include <cstdint>
#include <initializer_list>

#include "longdecode/types.h"

namespace longdecode {

inline constexpr int32_t kMaxRank = 4;

// Rules for every view handed to longdecode: the base pointer and every stride are multiples of
// 16 bytes, the innermost stride is 1 element, the other strides are free, 0 or more (a pool whose
// page stride is twice the page is fine), and the stride of a dimension of size 1 is ignored. What
// a call writes must not overlap itself (ordered by stride, each stride is at least the reach of
// the dimensions below it; else refused) nor anything that the call reads (only the plain cases are
// refused, such as o and q with one base pointer).
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int32_t rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};  // elements

  // Row-major contiguous view. Sizes in elements; at most kMaxRank dimensions (more are ignored).
  static TensorView contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view;
    view.data = data;
    view.dtype = dtype;
    for (int64_t size : shape) {
      if (view.rank < kMaxRank) view.shape[view.rank++] = size;
    }
    int64_t stride = 1;
    for (int32_t i = view.rank - 1; i >= 0; --i) {
      view.stride[i] = stride;
      stride *= view.shape[i];
    }
    return view;
  }
};

}  // namespace longdecode

#endif  // LONGDECODE_TENSOR_H_
