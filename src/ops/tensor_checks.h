// Checks of views: rank, shape, dtype, alignment, strides.
#ifndef LONGDECODE_OPS_TENSOR_CHECKS_H_
#define LONGDECODE_OPS_TENSOR_CHECKS_H_

#include <initializer_list>
#include <string_view>

#include "longdecode/attention.h"
#include "longdecode/status.h"
#include "longdecode/tensor.h"

namespace longdecode {

inline constexpr int64_t kAlignmentBytes = 16;  // of base pointers and strides
inline constexpr int64_t kAnySize = -1;

// What is written must not overlap itself: ordered by stride, the stride of each dimension is at
// least the reach of those below it. (Interleaved rows that happen not to meet are refused, too.)
enum class TensorUse { kRead, kWritten };

// shape: what each dimension must be, kAnySize where any size >= 0 will do.
Status check_tensor(std::string_view name, const TensorView& view,
                    std::initializer_list<int64_t> shape, TensorUse use = TensorUse::kRead);
Status check_dtype_value(std::string_view name, DType dtype);
Status check_dtype(std::string_view name, DType dtype, DType required);

// stride >= 0: whether the last of `size` steps of it is an offset that any address space has.
bool is_reachable(int64_t size, int64_t stride);

// A layer of a cache in its own format.
Status check_kv_layer(const KvLayerView& kv, TensorUse use = TensorUse::kRead);
// Pages that page ids may name.
int64_t num_pages(const KvLayerView& kv);

}  // namespace longdecode

#endif  // LONGDECODE_OPS_TENSOR_CHECKS_H_
