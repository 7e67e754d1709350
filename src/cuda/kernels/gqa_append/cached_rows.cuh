// Where a token's key and value lie in the cache, and which page an append makes due.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_APPEND_CACHED_ROWS_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_APPEND_CACHED_ROWS_CUH_

#include "cuda/kernels/gqa_append/quantize.cuh"

namespace longdecode::cuda::gqa_append {

// A (sequence, kv head) of the launch: tokens begin ... end - 1 are new.
struct Pair {
  int sequence, head, begin, end;

  __device__ Pair(const Params& p, int pair)
      : Pair(p, pair / p.num_kv_heads, pair % p.num_kv_heads) {}

  __device__ Pair(const Params& p, int sequence, int head) : sequence(sequence), head(head) {
    const int num_new = p.g_query_lens != nullptr ? p.g_query_lens[sequence] : p.max_new;
    end = p.g_kv_lens[sequence];
    begin = max(0, end - min(num_new, p.max_new));
  }
};

__device__ __forceinline__ int quantized_pages(const Params& p, int kv_len) {
  return kv_len <= p.quantize_lag ? 0 : (kv_len - p.quantize_lag) / p.page_size;
}

__device__ __forceinline__ int64_t input_index(const NewRows& rows, const Pair& pair, int token) {
  return pair.sequence * rows.batch_stride + (token - pair.begin) * rows.token_stride +
         pair.head * rows.head_stride;
}

__device__ __forceinline__ uint16_t* page_row(const Params& p, const StoredRows& rows,
                                              const Pair& pair, int token) {
  const int page = token / p.page_size;
  const int64_t page_id = p.g_block_table[pair.sequence * p.block_table_stride + page];
  return rows.g_rows + page_id * rows.page_stride + pair.head * rows.head_stride +
         (token - page * p.page_size) * rows.token_stride;
}

__device__ __forceinline__ uint16_t* ring_row(const Params& p, const Pair& pair, int token) {
  const int row = token - divide(token, p.ring_tokens) * static_cast<int>(p.ring_tokens.value);
  return p.ring.g_rows + p.g_slots[pair.sequence] * p.ring.page_stride +
         pair.head * p.ring.head_stride + row * p.ring.token_stride;
}

// The index-th page that this append makes due, if there is one. Keys of older tokens come from the
// ring; in a launch of their own where many are new, because the rows written later in the same
// append reuse it. load_new(token, channel): 8 keys of a new token.
template <DType kTo, class LoadNew>
__device__ __forceinline__ void quantize_due_page(const Params& p, const Pair& pair, int index,
                                                  const LoadNew& load_new, QuantizeStorage& s) {
  const int page = quantized_pages(p, pair.begin) + index;
  if (page >= quantized_pages(p, pair.end)) return;
  const int first = page * p.page_size;
  const auto load = [&](int token_in_page, int channel) {
    if (channel >= p.dim) return make_uint4(0, 0, 0, 0);
    const int token = first + token_in_page;
    return token < pair.begin ? load_8<kTo, kTo>(ring_row(p, pair, token), channel)
                              : load_new(token, channel);
  };
  const int64_t page_id = p.g_block_table[pair.sequence * p.block_table_stride + page];
  quantize_page<kTo>(
      p, load, p.g_chunks + page_id * p.chunk_page_stride_bytes + pair.head * p.chunk_bytes,
      p.g_residuals + page_id * p.residual_page_stride_bytes + pair.head * p.residual_bytes, s);
}

}  // namespace longdecode::cuda::gqa_append

#endif  // LONGDECODE_CUDA_KERNELS_GQA_APPEND_CACHED_ROWS_CUH_
