// What the kernels get by value. Pointers are device memory.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_PARAMS_H_

#include <cstdint>

#include "cuda/device/divisor.h"

namespace longdecode::cuda::gqa {

struct Params {
  const int32_t* g_kv_lens;      // [batch] tokens
  const int32_t* g_query_lens;   // [batch] tokens, or nullptr: query_len each
  const int32_t* g_block_table;  // [batch, block_table_stride] page ids
  int64_t block_table_stride;    // entries
  const uint16_t* g_q;           // [batch, query_len, num_q_heads, head_dim], strides in elements
  int64_t q_batch_stride, q_token_stride, q_head_stride;
  uint16_t* g_o;  // as g_q
  int64_t o_batch_stride, o_token_stride, o_head_stride;
  float* g_lse;                // [batch, query_len, num_q_heads] nats, or nullptr
  const float* g_sink_logits;  // [num_q_heads] nats, or nullptr
  // Partial results of pairs (sequence, kv head) that are split: slots [2 * num_workers] x
  // [num_row_groups] of Config::kPartialFloat4 float4 each; see partial_slot.
  float* g_partials;
  // [num_workers] {pair, number of splits} where worker w starts with split 1, else {0, 0}. Written
  // by row block 0 where !merges_by_pair.
  int32_t* g_split_info;
  // log2 weights: scale * dot, or with a soft cap cap_out * tanh(cap_in * dot).
  float softmax_scale_log2e, cap_in, cap_out;  // cap_out 0: no soft cap
  int32_t batch;
  int32_t query_len;
  int32_t sliding_window;  // tokens, 0: none
  int32_t num_kv_heads;
  int32_t num_row_groups;  // of a pair: ceil(query_len * group / 8)
  int32_t cta_row_groups;  // of a CTA, at most Tile::max_row_groups()
  int32_t num_stages;
  int32_t ring_offset;     // of the stages in shared memory, bytes
  Divisor group;           // query heads of a kv head
  Divisor num_row_blocks;  // grid = num_workers * num_row_blocks CTAs, row block fastest
  Divisor num_workers;     // CTAs that share the tiles of one row block
  Divisor num_splits;      // of a pair with fixed_splits
  int32_t page_shift;      // log2(page_size)
  int32_t box_shift;       // log2(tokens of a box of shared memory): of TMA min(page_size, tile)
  bool causal;
  bool fixed_splits;    // batch-invariant: the same splits whatever the neighbours
  bool merges_by_pair;  // the merge kernel has CTAs for every pair, not for every worker
};

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_PARAMS_H_
