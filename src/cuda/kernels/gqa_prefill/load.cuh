// Tiles of 64 rows in shared memory: queries, values, and keys from pages, from the ring of recent
// tokens or out of the two planes. A row takes 2 kDim + 16 bytes, so that the 8 rows of a matrix
// lie in different banks.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_PREFILL_LOAD_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_PREFILL_LOAD_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/floats.cuh"
#include "cuda/kernels/gqa_append/cached_rows.cuh"
#include "cuda/kernels/gqa_prefill/params.h"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/memory.cuh"

namespace longdecode::cuda::gqa_prefill {

using gqa_append::Pair;
using gqa_append::StoredRows;

template <int kDim>
inline constexpr int kPitchBytes = 2 * kDim + 16;
template <int kDim>
inline constexpr int kTileBytes = kTileTokens* kPitchBytes<kDim>;

// Rows first ... first + 63, those from `end` on and channels from `dim` on as zeros.
// row_of(row) is where a row begins.
template <int kDim, class RowOf>
__device__ __forceinline__ void load_rows(uint32_t s_tile, int first, int end, int dim,
                                          const RowOf& row_of, const void* g_any) {
  constexpr int kPieces = kDim / 8;
#pragma unroll
  for (int i = 0; i < kTileTokens * kPieces / kThreads; ++i) {
    const int index = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = index / kPieces, piece = index - row * kPieces;
    const bool valid = first + row < end && 8 * piece < dim;
    const void* g_from = valid ? row_of(first + row) + 8 * piece : g_any;
    ptx::copy_async_16(s_tile + row * kPitchBytes<kDim> + 16 * piece, g_from, valid ? 16 : 0);
  }
}

__device__ __forceinline__ const uint16_t* pool_row(const Params& p, const StoredRows& rows,
                                                    int kv_head, int token) {
  const int page = token >> p.page_shift;
  const int64_t page_id = p.cache.g_block_table[page];
  return rows.g_rows + page_id * rows.page_stride + kv_head * rows.head_stride +
         (token - (page << p.page_shift)) * rows.token_stride;
}

// 8 channels from their grid (bf16 steps, fp16 zeros in steps) and numbers 0 .. 1023.
__device__ __forceinline__ uint4 dequantize_8(const uint4& steps, const uint4& zeros,
                                              const uint32_t (&numbers)[8]) {
  const Floats8 step = unpack_bf16(steps);
  const uint32_t zero_words[4] = {zeros.x, zeros.y, zeros.z, zeros.w};
  Floats8 key;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto bits = static_cast<uint16_t>(zero_words[i / 2] >> (16 * (i % 2)));
    const float in_steps = fmaf(static_cast<float>(numbers[i]), 1.0f / 256, -511.5f / 256);
    key.v[i] = step.v[i] * (__half2float(__ushort_as_half(bits)) + in_steps);
  }
  return pack_bf16(key);
}

// The exact keys of 64 tokens of a quantised page, rounded to bf16: a warp takes a quad of units
// (16 tokens x 32 channels) at a time, lane 4 g + t the channels 8 t ... of tokens g and g + 8.
template <int kDim>
__device__ __forceinline__ void load_quantized(const Params& p, uint32_t s_tile, int kv_head,
                                               int first) {
  const gqa_append::Params& c = p.cache;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int page = first >> p.page_shift;
  const int64_t page_id = c.g_block_table[page];
  const uint8_t* g_chunk =
      c.g_chunks + page_id * c.chunk_page_stride_bytes + kv_head * c.chunk_bytes;
  const uint8_t* g_residuals =
      c.g_residuals + page_id * c.residual_page_stride_bytes + kv_head * c.residual_bytes;
  const int first_unit = (first - (page << p.page_shift)) / 16 * c.num_blocks;
  for (int quad = warp; quad < c.num_blocks; quad += kThreads / 32) {
    const int at = first_unit / 4 + quad;
    const uint4 packed = *reinterpret_cast<const uint4*>(g_chunk + at * 512 + 16 * lane);
    const uint32_t codes[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int unit = 4 * quad + i, tile = unit / c.num_blocks;
      const int channel = 32 * (unit - tile * c.num_blocks) + 8 * (lane & 3);
      const uint4 raw =
          *reinterpret_cast<const uint4*>(g_residuals + (4 * at + i) * int64_t{512} + 16 * lane);
      const uint32_t residuals[4] = {raw.x, raw.y, raw.z, raw.w};
      const uint4 steps =
          *reinterpret_cast<const uint4*>(g_chunk + c.step_offset_bytes + 2 * channel);
      const uint4 zeros =
          *reinterpret_cast<const uint4*>(g_chunk + c.zero_offset_bytes + 2 * channel);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t numbers[8];
#pragma unroll
        for (int b = 0; b < 8; ++b) {
          const int word = half + 2 * (b / 4), shift = 8 * (b % 4);
          numbers[b] =
              (codes[word] >> (shift + 2 * i) & 3u) << 8 | (residuals[word] >> shift & 255u);
        }
        const uint4 keys = dequantize_8(steps, zeros, numbers);
        const int row = 16 * tile + (lane >> 2) + 8 * half;
        ptx::store_shared(s_tile + row * kPitchBytes<kDim> + 2 * channel,
                          make_int4(keys.x, keys.y, keys.z, keys.w));
      }
    }
  }
}

// Keys of tokens first ... first + 63.
template <int kDim, bool kTwoPlane>
__device__ __forceinline__ void load_keys(const Params& p, uint32_t s_tile, int kv_head, int first,
                                          int end, int quantized_tokens) {
  if constexpr (kTwoPlane) {
    if (first < quantized_tokens) return load_quantized<kDim>(p, s_tile, kv_head, first);
    const Pair pair(p.cache, 0, kv_head);
    load_rows<kDim>(
        s_tile, first, end, p.cache.dim,
        [&](int token) -> const uint16_t* { return ring_row(p.cache, pair, token); }, p.g_q);
  } else {
    load_rows<kDim>(
        s_tile, first, end, p.cache.dim,
        [&](int token) { return pool_row(p, p.cache.k_pages, kv_head, token); }, p.g_q);
  }
}

}  // namespace longdecode::cuda::gqa_prefill

#endif  // LONGDECODE_CUDA_KERNELS_GQA_PREFILL_LOAD_CUH_
