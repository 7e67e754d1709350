// Which tokens a query sees, and where their rows lie in a paged cache.
#ifndef LONGDECODE_CPU_PAGED_ROWS_H_
#define LONGDECODE_CPU_PAGED_ROWS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cpu/tile_attention.h"
#include "longdecode/tensor.h"

namespace longdecode::cpu {

// One sequence's query tokens at the end of kv_len tokens.
struct QueryWindow {
  int64_t kv_len = 0;
  int64_t query_len = 0;
  bool causal = true;
  int64_t sliding_window = 0;  // 0: off

  // Query token t sees tokens [begin(t), end(t)); none where begin >= end.
  int64_t begin(int64_t t) const {
    return sliding_window == 0 ? 0 : std::max<int64_t>(0, position(t) - sliding_window + 1);
  }
  int64_t end(int64_t t) const { return causal ? std::max<int64_t>(0, position(t) + 1) : kv_len; }
  // The part of tile [tile_begin, tile_begin + count) that query token t sees.
  TokenRange in_tile(int64_t t, int64_t tile_begin, int64_t count) const {
    return {static_cast<int32_t>(std::clamp<int64_t>(begin(t) - tile_begin, 0, count)),
            static_cast<int32_t>(std::clamp<int64_t>(end(t) - tile_begin, 0, count))};
  }

 private:
  int64_t position(int64_t t) const { return kv_len - query_len + t; }
};

// Bytes from one index of a dimension to the next; 0 where the stride is to be ignored.
inline int64_t stride_bytes(const TensorView& view, int32_t dimension) {
  return view.shape[dimension] <= 1 ? 0 : view.stride[dimension] * dtype_bytes(view.dtype);
}

// The rows of one kv head of one sequence. pool: [num_pages, num_kv_heads, page_size, dim].
class PagedRows {
 public:
  PagedRows() = default;
  PagedRows(const TensorView& pool, const int32_t* pages, int32_t head)
      : base_(static_cast<const char*>(pool.data) + head * stride_bytes(pool, 1)),
        pages_(pages),
        page_shift_(std::countr_zero(static_cast<uint64_t>(pool.shape[2]))),
        page_stride_bytes_(stride_bytes(pool, 0)),
        token_stride_bytes_(stride_bytes(pool, 2)) {}

  const void* row(int64_t token) const {
    const int64_t page = token >> page_shift_;
    return base_ + pages_[page] * page_stride_bytes_ +
           (token - (page << page_shift_)) * token_stride_bytes_;
  }
  void fill(int64_t begin, int64_t count, const void** rows) const {
    const int64_t page_size = int64_t{1} << page_shift_;
    for (int64_t j = 0; j < count;) {
      const char* from = static_cast<const char*>(row(begin + j));
      const int64_t in_page = std::min(count - j, page_size - ((begin + j) & (page_size - 1)));
      for (int64_t i = 0; i < in_page; ++i) rows[j + i] = from + i * token_stride_bytes_;
      j += in_page;
    }
  }

 private:
  const char* base_ = nullptr;
  const int32_t* pages_ = nullptr;
  int page_shift_ = 0;
  int64_t page_stride_bytes_ = 0;
  int64_t token_stride_bytes_ = 0;
};

// Address of the row (i0, i1) of a rank-3 view, (i0, i1, i2) of a rank-4 view.
inline void* row_address(const TensorView& view, int64_t i0, int64_t i1, int64_t i2 = 0) {
  int64_t offset_bytes = i0 * stride_bytes(view, 0) + i1 * stride_bytes(view, 1);
  if (view.rank == 4) offset_bytes += i2 * stride_bytes(view, 2);
  return static_cast<char*>(view.data) + offset_bytes;
}

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_PAGED_ROWS_H_
