// What the kernels get by value. Pointers are device memory.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_PARAMS_H_

#include <cstdint>

#include "cuda/device/divisor.h"

namespace longdecode::cuda::ffd {

// Batches up to this many sequences are scheduled from one warp's registers; larger ones by
// schedule_kernel.
inline constexpr int32_t kSmallBatch = 32;
// kStages at most, of a warp's ring of chunks.
inline constexpr int32_t kMaxStages = 8;

struct Params {
  const int32_t* g_kv_lens;      // [batch] tokens
  const int32_t* g_query_lens;   // [batch] tokens, or nullptr: query_len each
  const int32_t* g_block_table;  // [batch, block_table_stride] page ids
  int64_t block_table_stride;    // entries
  const int32_t* g_slots;        // [batch] rows of g_recent_k
  const uint16_t* g_q;           // [batch, query_len, num_q_heads, head_dim], strides in elements
  int64_t q_batch_stride, q_token_stride, q_head_stride;
  uint16_t* g_o;  // the same shape, strides in elements
  int64_t o_batch_stride, o_token_stride, o_head_stride;
  float* g_lse;                // [batch, query_len, num_q_heads] nats, or nullptr
  const uint8_t* g_chunks;     // codes, steps, zeros of (page, kv head); strides in bytes
  const uint8_t* g_residuals;  // the same
  int64_t chunk_page_stride, residual_page_stride;
  const uint16_t* g_v;  // [num_pages, num_kv_heads, page_size, head_dim], strides in elements
  int64_t v_page_stride, v_head_stride, v_token_stride;
  const uint16_t* g_recent_k;  // [num_slots, num_kv_heads, ring_tokens, head_dim], in elements
  int64_t recent_slot_stride, recent_head_stride, recent_token_stride;

  // Statistics, each may be nullptr (DecodeStats).
  int64_t *g_tokens_scanned, *g_tokens_attended, *g_bytes_read;  // [batch, num_kv_heads]
  float *g_pseudo_max, *g_dropped_mass_bound;                    // [batch, query_len, num_q_heads]
  uint32_t* g_kept_tiles;  // [batch, num_kv_heads, kept_tiles_stride], zero before the run
  int64_t kept_tiles_stride;

  // Workspace. A slot is the partial result of one split of an item that is split: [slots][rows *
  // head_dim + 2 * rows + 4] words, empty between runs, see epilogue.cuh.
  float* g_partials;
  int32_t* g_first_items;  // [batch + 1] of schedule_kernel: items before the sequence,
  int32_t* g_first_slots;  // [batch + 1] slots before it

  float softmax_scale, softmax_scale_log2e;
  float delta;           // nats; infinity: everything is kept
  float delta_unscaled;  // delta / softmax_scale
  float margin_sigmas;
  int32_t batch, query_len, num_q_heads, num_kv_heads, group;
  uint32_t group_inverse;     // row / group = row * group_inverse >> 16 for rows below 128
  int32_t num_row_blocks;     // of `rows` rows, over query_len * group
  int32_t num_splits_target;  // CTAs of a run that items are made for
  // Of each of `batch` equally long sequences; 0: there are more items.
  Divisor most_splits;
  int32_t pages_per_split;       // batch-invariant: fixed; else 0
  int64_t prefetch_query_bytes;  // of the first query token; 0: its rows are not contiguous
  int32_t sink_tokens, recent_tokens;
  int32_t page_shift;  // log2(page_size)
  int32_t page_tiles;  // page_size / 16
  // Of a (page, kv head): its codes, and with steps and zeros. Ready, because what comes before
  // every page is in the way.
  int32_t code_bytes, chunk_bytes;
  int32_t ring_tokens;
  int32_t num_stages;  // of a warp's ring
  uint32_t sixteen;    // 16: unknown to the compiler, which makes it multiply instead of shift
  bool causal;
  bool certified;
  bool attends_all;  // nothing is scanned
  bool is_dense;     // no pseudo-max
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_PARAMS_H_
