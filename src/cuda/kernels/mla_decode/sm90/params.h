// What the kernels get by value. Pointers are device memory.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_PARAMS_H_

#include <vector_types.h>

#include <cstdint>

#include "cuda/device/divisor.h"

namespace longdecode::cuda::mla_sm90 {

// Batches up to this many sequences are scheduled from one warp's registers.
inline constexpr int32_t kSmallBatch = 32;

struct Params {
  const int32_t* g_kv_lens;      // [batch] tokens
  const int32_t* g_query_lens;   // [batch] tokens, or nullptr: query_len each
  const int32_t* g_block_table;  // [batch, block_table_stride] page ids
  int64_t block_table_stride;    // entries
  const uint16_t* g_q;           // [batch, query_len, num_q_heads, 576], strides in elements
  int64_t q_batch_stride, q_token_stride, q_head_stride;
  uint16_t* g_o;  // [batch, query_len, num_q_heads, 512], strides in elements
  int64_t o_batch_stride, o_token_stride, o_head_stride;
  float* g_lse;  // [batch, query_len, num_q_heads] nats, or nullptr
  // Partial results of sequences that are split: [num_row_blocks, 2 * num_workers] slots of
  // Config::kPartialUnits units of 16 bytes; see partial_slot. exchange.cuh keeps weights there.
  uint4* g_partials;
  // {number of runs so far, CTAs of this run that have read it}. A run tags its partials with its
  // number, from 1.
  uint32_t* g_counters;
  float softmax_scale_log2e;
  int32_t batch;
  int32_t query_len;
  Divisor num_q_heads;
  Divisor num_row_blocks;  // grid = num_workers * num_row_blocks CTAs, row block fastest
  Divisor num_workers;     // CTAs that share the tiles of one row block
  Divisor num_splits;      // of a sequence in the strided schedule; num_splits * batch <= workers
  int32_t page_shift;      // log2(page_size)
  bool causal;
  bool may_split;     // partial results may arise
  bool fixed_splits;  // batch-invariant: strided whatever the lengths
};

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_PARAMS_H_
