// What the append kernel gets by value. Pointers are device memory, strides in elements of 2 bytes
// unless named otherwise.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_APPEND_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_GQA_APPEND_PARAMS_H_

#include <cstdint>

#include "cuda/device/divisor.h"

namespace longdecode::cuda::gqa_append {

// New rows [batch, max_new, num_kv_heads, dim], strides in elements of their own dtype.
struct NewRows {
  const void* g_rows;
  int64_t batch_stride, token_stride, head_stride;
};

// Rows of a pool [pages, num_kv_heads, page_size, dim], or of the ring [slots, num_kv_heads, ring,
// dim].
struct StoredRows {
  uint16_t* g_rows;
  int64_t page_stride, head_stride, token_stride;
};

struct Params {
  NewRows k, v;
  StoredRows k_pages;  // plain keys
  StoredRows v_pages;
  StoredRows ring;  // two-plane keys that are not quantised: token j in row j mod ring_tokens
  uint8_t* g_chunks;
  int64_t chunk_page_stride_bytes;
  uint8_t* g_residuals;
  int64_t residual_page_stride_bytes;
  const int32_t* g_block_table;
  int64_t block_table_stride;
  const int32_t* g_kv_lens;     // [batch] tokens, the new ones included
  const int32_t* g_query_lens;  // [batch] new tokens, or nullptr: max_new each
  const int32_t* g_slots;       // [batch], two-plane only
  int32_t num_kv_heads, max_new, page_size, dim;
  int32_t num_blocks;     // of 32 channels of a plane
  int32_t quantize_lag;   // tokens past a page's end after which it is quantised
  Divisor ring_tokens;    // value 0: plain keys
  Divisor pair_ctas;      // CTAs of a (sequence, kv head) in this launch
  int32_t quantize_ctas;  // the first of them quantise a page each, the others write rows
  int64_t chunk_bytes, step_offset_bytes, zero_offset_bytes, residual_bytes;  // of a (page, head)
};

}  // namespace longdecode::cuda::gqa_append

#endif  // LONGDECODE_CUDA_KERNELS_GQA_APPEND_PARAMS_H_
