// What is read of the cache: chunks to be scanned, into a warp's ring, and tiles to be attended,
// into a warp's slots.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_LOAD_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_LOAD_CUH_

#include "cuda/kernels/ffd_decode/schedule.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"

namespace longdecode::cuda::ffd {

// Where the cache has one (sequence, kv head).
template <class C>
struct HeadSource {
  const int32_t* g_pages;
  const uint8_t* g_chunks;
  const uint8_t* g_residuals;
  const uint16_t* g_v;
  const uint16_t* g_recent_k;  // of slot 0
  int slot;                    // used late, so that nobody waits for its load

  __device__ __forceinline__ HeadSource(const Params& p, int sequence, int kv_head) {
    const int64_t page_bytes = static_cast<int64_t>(C::kDim) << p.page_shift;
    const int64_t head = kv_head;
    g_pages = p.g_block_table + sequence * p.block_table_stride;
    g_chunks = p.g_chunks + head * p.chunk_bytes;
    g_residuals = p.g_residuals + head * page_bytes;
    g_v = p.g_v + head * p.v_head_stride;
    g_recent_k = p.g_recent_k + head * p.recent_head_stride;
    slot = ptx::load_global_i32(p.g_slots + sequence);
  }
};

// A warp's ring of chunks. num_stages chunks are in flight before the first one is read.
struct ChunkRing {
  uint32_t s_chunks, s_barriers;
  int read_stage = 0, issue_stage = 0;
  uint32_t parity = 0;

  // Arrivals that fill a stage.
  template <class C>
  static constexpr int kArrivals = C::kIsSm80 ? 32 : 1;

  // By a warp: one lane asks for a bulk copy, or, as sm_80 has none, every lane copies its part.
  template <class C>
  __device__ __forceinline__ void issue(const Params& p, const uint8_t* g_chunk, int lane) {
    const uint32_t s_to = s_chunks + issue_stage * p.chunk_bytes;
    const uint32_t s_barrier = s_barriers + 8 * issue_stage;
    if constexpr (C::kIsSm80) {
      for (int at = 16 * lane; at < p.chunk_bytes; at += 512) {
        ptx::copy_async_16(s_to + at, g_chunk + at, 16);
      }
      ptx::mbarrier_arrive_after_copies(s_barrier);
    } else if (ptx::elect_lane()) {
      ptx::mbarrier_arrive_expect_tx(s_barrier, p.chunk_bytes);
      ptx::bulk_load(s_to, g_chunk, p.chunk_bytes, s_barrier);
    }
    if (++issue_stage == p.num_stages) issue_stage = 0;
  }
  // The shared address of the next chunk, once it is there.
  __device__ __forceinline__ uint32_t wait(const Params& p) const {
    ptx::mbarrier_wait(s_barriers + 8 * read_stage, parity);
    return s_chunks + read_stage * p.chunk_bytes;
  }
  __device__ __forceinline__ void release(const Params& p) {
    if (++read_stage == p.num_stages) read_stage = 0, parity ^= 1;
  }
};

// 16-byte pieces of 8 rows lie in different banks, of two neighbouring tokens too.
__device__ __forceinline__ int swizzle(int token) {
  return ((token >> 1 & 3) << 1) ^ ((token & 1) << 2);
}

// The rows of a tile, from g_rows on; those from num_tokens on are zeros, and not read. Rows from
// wrap_token on start again `wrap` elements earlier.
template <class C>
__device__ __forceinline__ void load_rows(uint32_t s_to, const uint16_t* g_rows, int64_t stride,
                                          int num_tokens, int wrap_token, int64_t wrap, int lane) {
  constexpr int kPieces = C::kDim / 8;
  if constexpr (kPieces % 8 == 0 && kPieces <= 32) {
    constexpr int kStep = 32 / kPieces;  // tokens between a lane's pieces
    const int piece = lane % kPieces, first = lane / kPieces;
    const uint16_t* g_from = g_rows + 8 * piece + first * stride;
    const uint32_t s_first = s_to + first * C::kRowBytes;
    if (num_tokens >= kTileTokens && wrap_token >= kTileTokens) {
#pragma unroll
      for (int token = 0; token < kTileTokens; token += kStep) {
        ptx::copy_async_16(s_first + token * C::kRowBytes + ((piece ^ swizzle(token + first)) << 4),
                           g_from, 16);
        g_from += kStep * stride;
      }
      return;
    }
#pragma unroll 1
    for (int token = 0; token < kTileTokens; token += kStep) {
      const int at = token + first;
      const uint16_t* g_row = at < wrap_token ? g_from : g_from - wrap;
      ptx::copy_async_16(s_first + token * C::kRowBytes + ((piece ^ swizzle(at)) << 4),
                         at < num_tokens ? g_row : g_rows, at < num_tokens ? 16 : 0);
      g_from += kStep * stride;
    }
  } else {
#pragma unroll 2
    for (int i = 0; i < kPieces / 2; ++i) {
      const int token = (lane + 32 * i) / kPieces, piece = (lane + 32 * i) % kPieces;
      const uint16_t* g_from = g_rows + 8 * piece + token * stride;
      if (token >= wrap_token) g_from -= wrap;
      ptx::copy_async_16(s_to + token * C::kRowBytes + ((piece ^ swizzle(token)) << 4),
                         token < num_tokens ? g_from : g_rows, token < num_tokens ? 16 : 0);
    }
  }
}

// Codes and residuals of a quantised tile.
template <class C>
__device__ __forceinline__ void load_planes(const Params& p, const HeadSource<C>& source,
                                            uint32_t s_slot, int tile, int page_id, int lane) {
  const int in_page = tile & ((1 << (p.page_shift - 4)) - 1);
  const uint8_t* g_chunk = source.g_chunks + page_id * p.chunk_page_stride;
  const uint8_t* g_residuals =
      source.g_residuals + page_id * p.residual_page_stride + in_page * (kTileTokens * C::kDim);
  const int first_quad = in_page * C::kBlocks / 4;
  const int last_quad = (in_page * C::kBlocks + C::kBlocks - 1) / 4;
#pragma unroll
  for (int q = 0; q < C::kTileQuads; ++q) {
    ptx::copy_async_16(s_slot + 512 * q + 16 * lane,
                       g_chunk + 512 * min(first_quad + q, last_quad) + 16 * lane, 16);
  }
#pragma unroll
  for (int i = 0; i < C::kBlocks; ++i) {
    ptx::copy_async_16(s_slot + C::kResidualOffset + 512 * i + 16 * lane,
                       g_residuals + 512 * i + 16 * lane, 16);
  }
}

// Steps and zeros of a quantised tile's page.
template <class C>
__device__ __forceinline__ void load_constants(const Params& p, const HeadSource<C>& source,
                                               uint32_t s_slot, int page_id, int lane) {
  const uint8_t* g_constants = source.g_chunks + page_id * p.chunk_page_stride + p.code_bytes;
#pragma unroll
  for (int i = 16 * lane; i < 4 * C::kDim; i += 512) {
    ptx::copy_async_16(s_slot + C::kConstantsOffset + i, g_constants + i, 16);
  }
}

// Keys of a tile that is not quantised.
template <class C>
__device__ __forceinline__ void load_recent(const Params& p, const HeadSource<C>& source,
                                            const Spans& spans, uint32_t s_to, int tile, int lane) {
  const int first = tile * kTileTokens, row = first % p.ring_tokens;
  load_rows<C>(s_to,
               source.g_recent_k + source.slot * p.recent_slot_stride + row * p.recent_token_stride,
               p.recent_token_stride, spans.kv_len - first, p.ring_tokens - row,
               p.ring_tokens * p.recent_token_stride, lane);
}

template <class C>
__device__ __forceinline__ void load_keys(const Params& p, const HeadSource<C>& source,
                                          const Spans& spans, uint32_t s_slot, int tile,
                                          int page_id, int lane) {
  if (tile * kTileTokens < spans.num_quantized) {
    load_planes<C>(p, source, s_slot, tile, page_id, lane);
  } else {
    load_recent<C>(p, source, spans, s_slot, tile, lane);
  }
}

template <class C>
__device__ __forceinline__ void load_values(const Params& p, const HeadSource<C>& source,
                                            const Spans& spans, uint32_t s_slot, int tile,
                                            int page_id, int lane) {
  const int in_page = tile & ((1 << (p.page_shift - 4)) - 1);
  load_rows<C>(s_slot + C::kValuesOffset,
               source.g_v + page_id * p.v_page_stride + in_page * kTileTokens * p.v_token_stride,
               p.v_token_stride, spans.kv_len - tile * kTileTokens, kTileTokens, 0, lane);
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_LOAD_CUH_
