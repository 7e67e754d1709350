#include "ops/tensor_checks.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode {
namespace {

bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kAlignmentBytes == 0;
}

std::string shape_text(const int64_t* shape, int32_t rank) {
  std::string text = "[";
  for (int32_t i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += shape[i] == kAnySize ? "any" : fmt::format("{}", shape[i]);
  }
  return text + "]";
}

// No address space reaches further, and sums of kMaxRank such offsets in bytes fit int64_t.
constexpr int64_t kMaxOffset = int64_t{1} << 57;

// The view has passed check_strides: its reach fits an int64.
Status check_no_overlap(std::string_view name, const TensorView& view) {
  int32_t order[kMaxRank];  // dimensions of more than one element, smallest stride first
  int32_t count = 0;
  for (int32_t i = 0; i < view.rank; ++i) {
    if (view.shape[i] <= 1) continue;
    int32_t at = count++;
    for (; at > 0 && view.stride[order[at - 1]] > view.stride[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t reach = 1;  // elements from the first to the last of the dimensions so far
  for (int32_t n = 0; n < count; ++n) {
    const int32_t i = order[n];
    if (view.stride[i] < reach) {
      return invalid_argument(
          "{}.stride[{}] is {} with shape[{}] {}; what is written must not overlap, allowed: {} "
          "and more",
          name, i, view.stride[i], i, view.shape[i], reach);
    }
    reach += view.stride[i] * (view.shape[i] - 1);
  }
  return {};
}

Status check_strides(std::string_view name, const TensorView& view) {
  const int32_t inner = view.rank - 1;
  if (view.shape[inner] > 1 && view.stride[inner] != 1) {
    return invalid_argument("{}.stride[{}] is {}; the innermost dimension allows 1", name, inner,
                            view.stride[inner]);
  }
  for (int32_t i = 0; i < inner; ++i) {
    if (view.shape[i] <= 1) continue;
    if (view.stride[i] % (kAlignmentBytes / dtype_bytes(view.dtype)) != 0) {
      return invalid_argument(
          "{}.stride[{}] is {} elements of {} bytes; allowed: multiples of {} "
          "bytes",
          name, i, view.stride[i], dtype_bytes(view.dtype), kAlignmentBytes);
    }
    if (view.stride[i] < 0) {
      return invalid_argument("{}.stride[{}] is {}; allowed: 0 and more", name, i, view.stride[i]);
    }
    if (!is_reachable(view.shape[i], view.stride[i])) {
      return invalid_argument(
          "{}.stride[{}] is {} with shape[{}] {}; offsets of at most {} elements are allowed", name,
          i, view.stride[i], i, view.shape[i], kMaxOffset);
    }
  }
  return {};
}

Status check_plane(const char* name, const uint8_t* plane, int64_t page_stride_bytes,
                   int64_t page_bytes, int64_t pages) {
  if (pages == 0) return {};
  if (plane == nullptr || !is_aligned(plane)) {
    return invalid_argument("{} is {}; allowed: a {}-byte aligned pointer", name, fmt::ptr(plane),
                            kAlignmentBytes);
  }
  if (pages > 1 && (page_stride_bytes < page_bytes || page_stride_bytes % kAlignmentBytes != 0)) {
    return invalid_argument(
        "the page stride of {} is {} bytes; allowed: multiples of {} from {} on", name,
        page_stride_bytes, kAlignmentBytes, page_bytes);
  }
  if (!is_reachable(pages, page_stride_bytes)) {
    return invalid_argument(
        "the page stride of {} is {} bytes with {} pages; offsets of at most {} bytes are allowed",
        name, page_stride_bytes, pages, kMaxOffset);
  }
  return {};
}

Status check_two_plane(const KvLayerView& kv, TensorUse use) {
  const KvFormat& format = kv.format;
  const int64_t heads = format.num_kv_heads;
  if (kv.num_pages < 0) {
    return invalid_argument("kv.num_pages is {}; allowed: 0 or more", kv.num_pages);
  }
  LD_RETURN_IF_ERROR(check_plane("kv.chunks", kv.chunks, kv.chunk_page_stride_bytes,
                                 heads * format.chunk_bytes(), kv.num_pages));
  LD_RETURN_IF_ERROR(check_plane("kv.residuals", kv.residuals, kv.residual_page_stride_bytes,
                                 heads * format.residual_bytes(), kv.num_pages));
  LD_RETURN_IF_ERROR(
      check_tensor("kv.v", kv.v, {kv.num_pages, heads, format.page_size, format.value_dim}, use));
  LD_RETURN_IF_ERROR(check_dtype("kv.v", kv.v.dtype, format.dtype));
  LD_RETURN_IF_ERROR(check_tensor("kv.recent_k", kv.recent_k,
                                  {kAnySize, heads, format.recent_ring_tokens(), format.key_dim},
                                  use));
  return check_dtype("kv.recent_k", kv.recent_k.dtype, format.dtype);
}

}  // namespace

Status check_dtype_value(std::string_view name, DType dtype) {
  const auto value = static_cast<int32_t>(dtype);
  if (value >= 0 && value <= 2) return {};
  return invalid_argument("{} is {}; allowed: 0 (f32), 1 (f16), 2 (bf16)", name, value);
}

Status check_dtype(std::string_view name, DType dtype, DType required) {
  if (dtype == required) return {};
  return invalid_argument("{}.dtype is {}; allowed here: {} (0 f32, 1 f16, 2 bf16)", name,
                          static_cast<int32_t>(dtype), static_cast<int32_t>(required));
}

Status check_tensor(std::string_view name, const TensorView& view,
                    std::initializer_list<int64_t> shape, TensorUse use) {
  const auto rank = static_cast<int32_t>(shape.size());
  if (view.rank != rank) {
    return invalid_argument("{}.rank is {}; allowed: {}", name, view.rank, rank);
  }
  LD_RETURN_IF_ERROR(check_dtype_value(fmt::format("{}.dtype", name), view.dtype));
  bool is_empty = false;
  for (int32_t i = 0; i < rank; ++i) {
    const int64_t required = shape.begin()[i];
    if (required == kAnySize ? view.shape[i] < 0 : view.shape[i] != required) {
      return invalid_argument("{}.shape is {}; allowed: {}", name, shape_text(view.shape, rank),
                              shape_text(shape.begin(), rank));
    }
    is_empty = is_empty || view.shape[i] == 0;
  }
  if (is_empty) return {};
  if (view.data == nullptr || !is_aligned(view.data)) {
    return invalid_argument("{}.data is {}; allowed: a {}-byte aligned pointer", name,
                            fmt::ptr(view.data), kAlignmentBytes);
  }
  LD_RETURN_IF_ERROR(check_strides(name, view));
  return use == TensorUse::kWritten ? check_no_overlap(name, view) : Status();
}

bool is_reachable(int64_t size, int64_t stride) {
  int64_t offset = 0;
  return !__builtin_mul_overflow(size - 1, stride, &offset) && offset <= kMaxOffset;
}

int64_t num_pages(const KvLayerView& kv) {
  return kv.format.keys == KeyEncoding::kTwoPlane ? kv.num_pages : kv.k.shape[0];
}

Status check_kv_layer(const KvLayerView& kv, TensorUse use) {
  const KvFormat& format = kv.format;
  LD_RETURN_IF_ERROR(validate(format));
  if (format.keys == KeyEncoding::kTwoPlane) return check_two_plane(kv, use);
  LD_RETURN_IF_ERROR(check_tensor(
      "kv.k", kv.k, {kAnySize, format.num_kv_heads, format.page_size, format.key_dim}, use));
  LD_RETURN_IF_ERROR(check_dtype("kv.k", kv.k.dtype, format.dtype));
  if (format.op == Op::kMla) return {};
  LD_RETURN_IF_ERROR(check_tensor(
      "kv.v", kv.v, {kv.k.shape[0], format.num_kv_heads, format.page_size, format.value_dim}, use));
  return check_dtype("kv.v", kv.v.dtype, format.dtype);
}

}  // namespace longdecode
