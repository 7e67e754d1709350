// Which tokens a query token sees and which of them are always attended: the arithmetic of
// src/cpu/ffd_spans.cc (attention.h: FfdOptions).
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_SPANS_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_SPANS_CUH_

#include "cuda/kernels/ffd_decode/config.cuh"
#include "cuda/ptx/memory.cuh"
#include "longdecode/kv_format.h"

namespace longdecode::cuda::ffd {

// Tokens of one query row: visible [0, end), always attended [0, sink_end) and [recent_begin, end).
struct RowSpan {
  int end, sink_end, recent_begin;
  __device__ __forceinline__ bool always(int token) const {
    return token < end && (token < sink_end || token >= recent_begin);
  }
};

// A sequence. Tiles [0, sink_tiles) and [recent_tile, num_tiles) are always attended; those
// [sink_tiles, scan_end) are scanned, and every query token sees all of their tokens.
struct Spans {
  int kv_len = 0, query_len = 0;
  int num_quantized = 0;  // tokens whose keys are in the planes
  int sink_tiles = 0, recent_tile = 0, num_tiles = 0, scan_end = 0;
  // Tokens that every query token sees end here; those of them that every one always attends are
  // [0, common_sink_end) and [common_recent_begin, common_end).
  int common_end = 0, common_sink_end = 0, common_recent_begin = 0;

  __device__ __forceinline__ bool is_empty() const { return num_tiles == 0; }
  __device__ __forceinline__ int num_always() const { return sink_tiles + num_tiles - recent_tile; }
  // The first ones of them: those whose keys are in the planes.
  __device__ __forceinline__ int num_quantized_always() const {
    const int tiles = num_quantized / kTileTokens;
    return min(sink_tiles, tiles) + max(0, min(num_tiles, tiles) - recent_tile);
  }
  __device__ __forceinline__ int always_tile(int index) const {
    return index < sink_tiles ? index : recent_tile + index - sink_tiles;
  }
  // Every query token always attends all tokens of the tile.
  __device__ __forceinline__ bool is_always(int tile) const {
    const int begin = tile * kTileTokens, end = begin + kTileTokens;
    return end <= common_sink_end || (begin >= common_recent_begin && end <= common_end);
  }
  __device__ __forceinline__ int num_scanned() const { return scan_end - sink_tiles; }
  // The page of the first scanned tile, and how many pages have any.
  __device__ __forceinline__ int first_page(int tile_shift) const {
    return sink_tiles >> tile_shift;
  }
  __device__ __forceinline__ int num_pages(int tile_shift) const {
    if (num_scanned() == 0) return 0;
    return ((scan_end - 1) >> tile_shift) - first_page(tile_shift) + 1;
  }
};

__device__ __forceinline__ RowSpan row_span(const Params& p, const Spans& spans, int query_idx) {
  const int position = spans.kv_len - spans.query_len + query_idx;
  RowSpan span;
  span.end = p.causal ? min(max(position + 1, 0), spans.kv_len) : spans.kv_len;
  // Dense: no sinks, and recent is what is not quantised; all the rest is kept without a scan.
  const int recent =
      p.is_dense ? spans.num_quantized : min(position - p.recent_tokens + 1, spans.num_quantized);
  span.recent_begin = min(max(recent, 0), span.end);
  span.sink_end = min(p.sink_tokens, span.recent_begin);
  return span;
}

// The query token of a row.
__device__ __forceinline__ int token_of(const Params& p, int row) {
  return static_cast<int>(row * p.group_inverse >> 16);
}

__device__ __forceinline__ int query_len_of(const Params& p, int sequence) {
  if (p.g_query_lens == nullptr) return p.query_len;
  return min(p.query_len, max(0, ptx::load_global_i32(p.g_query_lens + sequence)));
}

__device__ __forceinline__ Spans make_spans(const Params& p, int kv_len, int query_len) {
  Spans spans;
  if (kv_len <= 0 || query_len <= 0) return spans;
  spans.kv_len = kv_len;
  spans.query_len = query_len;
  spans.num_quantized =
      kv_len <= kQuantizeLag ? 0 : (kv_len - kQuantizeLag) >> p.page_shift << p.page_shift;
  spans.num_tiles = (kv_len - 1) / kTileTokens + 1;
  // The last query token has the most sinks; the first one that sees anything, the oldest recent
  // token.
  const RowSpan last = row_span(p, spans, query_len - 1);
  const RowSpan first = row_span(p, spans, p.causal ? max(0, query_len - kv_len) : 0);
  spans.common_end = p.causal && query_len > kv_len ? 0 : first.end;
  spans.common_sink_end = min(first.sink_end, spans.common_end);
  spans.common_recent_begin = last.recent_begin;
  spans.sink_tiles = (last.sink_end + kTileTokens - 1) / kTileTokens;
  spans.recent_tile = max(first.recent_begin / kTileTokens, spans.sink_tiles);
  spans.scan_end = max(spans.sink_tiles, min(spans.num_quantized / kTileTokens, spans.recent_tile));
  return spans;
}

// Pages that the work of a sequence is counted in when it is cut into splits, at least 1.
__device__ __forceinline__ int work_pages(const Params& p, const Spans& spans) {
  const int tile_shift = p.page_shift - 4;
  const int always = (spans.num_always() + (1 << tile_shift) - 1) >> tile_shift;
  return max(1, max(spans.num_pages(tile_shift), always));
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_SPANS_CUH_
