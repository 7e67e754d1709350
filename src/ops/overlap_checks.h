// Outputs lie apart from each other and from inputs.
#ifndef LONGDECODE_OPS_OVERLAP_CHECKS_H_
#define LONGDECODE_OPS_OVERLAP_CHECKS_H_

#include <cstdint>
#include <span>

#include "longdecode/attention.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "longdecode/tensor.h"

namespace longdecode {

// The addresses of one argument; the argument owns all of them unless it is a view with gaps.
struct Extent {
  const char* name = "";
  uintptr_t begin = 0;
  uintptr_t end = 0;  // past the last element; == begin: nothing
  bool has_gaps = false;
};

// The view has passed check_tensor.
Extent extent_of(const char* name, const TensorView& view);

template <typename T>
Extent extent_of(const char* name, const T* data, int64_t count) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {name, begin, data == nullptr ? begin : begin + sizeof(T) * static_cast<uintptr_t>(count)};
}

// Refuses what is sure to overlap: ranges that meet where one of them has no gaps and holds the
// first element of the other, or neither has gaps. Views with gaps may lie side by side in one
// buffer; whether two of those meet is the caller's to know.
Status check_apart(std::span<const Extent> outputs, std::span<const Extent> inputs);

Status check_apart(const DecodeArgs& args, const DecodeDesc& desc);
Status check_apart(const AppendArgs& args);
Status check_apart(const MergeArgs& args);

}  // namespace longdecode

#endif  // LONGDECODE_OPS_OVERLAP_CHECKS_H_
