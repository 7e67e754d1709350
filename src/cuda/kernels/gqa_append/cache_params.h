// The cache's part of the parameters of a kernel that appends.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_APPEND_CACHE_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_GQA_APPEND_CACHE_PARAMS_H_

#include "cuda/host/decode_tensors.h"
#include "cuda/kernels/gqa_append/params.h"
#include "longdecode/kv_cache.h"

namespace longdecode::cuda::gqa_append {

// Threads that quantise a page: a warp for each of its quads.
inline int32_t page_threads(const KvFormat& format) {
  return 32 * (format.page_size * format.num_blocks() / 64);
}

inline StoredRows stored_rows(const TensorView& view) {
  return {static_cast<uint16_t*>(view.data), stride_of(view, 0), stride_of(view, 1),
          stride_of(view, 2)};
}

// Everything but k, v, max_new and the division of CTAs.
inline Params make_cache_params(const KvLayerView& kv, const BatchView& batch) {
  const KvFormat& format = kv.format;
  Params p{};
  p.v_pages = stored_rows(kv.v);
  p.g_block_table = batch.block_table;
  p.block_table_stride = batch.block_table_stride;
  p.g_kv_lens = batch.kv_lens;
  p.g_query_lens = batch.query_lens;
  p.num_kv_heads = format.num_kv_heads;
  p.page_size = format.page_size;
  p.dim = format.key_dim;
  if (format.keys == KeyEncoding::kPlain) {
    p.k_pages = stored_rows(kv.k);
    return p;
  }
  p.ring = stored_rows(kv.recent_k);
  p.g_slots = batch.slots;
  p.ring_tokens = make_divisor(format.recent_ring_tokens());
  p.g_chunks = kv.chunks;
  p.chunk_page_stride_bytes = kv.chunk_page_stride_bytes;
  p.g_residuals = kv.residuals;
  p.residual_page_stride_bytes = kv.residual_page_stride_bytes;
  p.num_blocks = format.num_blocks();
  p.quantize_lag = kQuantizeLag;
  p.chunk_bytes = format.chunk_bytes();
  p.step_offset_bytes = format.step_offset_bytes();
  p.zero_offset_bytes = format.zero_offset_bytes();
  p.residual_bytes = format.residual_bytes();
  return p;
}

}  // namespace longdecode::cuda::gqa_append

#endif  // LONGDECODE_CUDA_KERNELS_GQA_APPEND_CACHE_PARAMS_H_
