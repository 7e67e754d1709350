// Scanning the 2-bit codes of a page: which of its tiles hold a candidate of some row.
//
// A masked byte of the code plane is an operand of the matrix instruction as it is: the fields at
// bits 4 and 6 directly, those at bits 0 and 2 after a multiplication by 16. So the fields 0 and 2
// give 16 times, the fields 1 and 3 give 64 times the sum that is wanted, in two accumulators.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCAN_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCAN_CUH_

#include "cuda/kernels/ffd_decode/fold.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace longdecode::cuda::ffd {

inline constexpr int kHalfPageTiles = 4;  // of 64 tokens: scanned at a time, one vote

// The tiles of one repetition of the code plane. negative[tile] has its sign bit clear where the
// lane has a candidate. s_codes: of the first quad, with the lane's offset.
template <class C>
__device__ __forceinline__ void scan_group(uint32_t s_codes, const ScanQuery<C>& query,
                                           uint32_t sixteen, int32_t* negative) {
  uint32_t high[C::kGroupQuads][4], low[C::kGroupQuads][4];
#pragma unroll
  for (int q = 0; q < C::kGroupQuads; ++q) {
    const int4 v = C::shared_int4(s_codes + 512 * q);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      high[q][j] = word(v, j);
      low[q][j] = high[q][j] * sixteen;
    }
  }
#pragma unroll
  for (int tile = 0; tile < C::kGroupTiles; ++tile) {
    int32_t even[4] = {query.start_0, query.start_1, query.start_0, query.start_1};
    int32_t odd[4] = {0, 0, 0, 0};
#pragma unroll
    for (int block = 0; block < C::kBlocks; ++block) {
      const int unit = tile * C::kBlocks + block, field = unit % 4;
      const uint32_t(&from)[4] = field < 2 ? low[unit / 4] : high[unit / 4];
      const uint32_t mask = field % 2 == 0 ? 0x30303030u : 0xc0c0c0c0u;
      ptx::mma_u8_s8(field % 2 == 0 ? even : odd, from[0] & mask, from[1] & mask, from[2] & mask,
                     from[3] & mask, query.b[2 * block], query.b[2 * block + 1]);
    }
    negative[tile] = (4 * even[0] + odd[0]) & (4 * even[1] + odd[1]) & (4 * even[2] + odd[2]) &
                     (4 * even[3] + odd[3]);
  }
}

// Bit i: tile i of the 64 tokens has a candidate of the rows of `query`.
template <class C>
__device__ __forceinline__ uint32_t scan_half_page(uint32_t s_codes, const ScanQuery<C>& query,
                                                   uint32_t sixteen, int lane) {
  int32_t negative[kHalfPageTiles];
#pragma unroll
  for (int tile = 0; tile < kHalfPageTiles; tile += C::kGroupTiles) {
    scan_group<C>(s_codes + tile / C::kGroupTiles * C::kGroupQuads * 512 + 16 * lane, query,
                  sixteen, negative + tile);
  }
  const int32_t all = negative[0] & negative[1] & negative[2] & negative[3];
  uint32_t hits = 0;
  if (__any_sync(kFullWarp, all >= 0)) {
#pragma unroll
    for (int tile = 0; tile < kHalfPageTiles; ++tile) {
      if (__any_sync(kFullWarp, negative[tile] >= 0)) hits |= 1u << tile;
    }
  }
  return hits;
}

// Scores, before softmax_scale, that a token needs to be a candidate of the rows.
__device__ __forceinline__ float needed_score(const Params& p, float pseudo_max, bool exists) {
  if (!exists) return INFINITY;
  const float needed = pseudo_max - p.delta_unscaled;
  if (!p.certified) return needed;
  return needed - 0x1p-20f * (fabsf(pseudo_max) + p.delta_unscaled);  // the rounding of pseudo_max
}

// Bit i: tile i of the page has a candidate of any row. The rows of a sequence are all of them,
// whatever row block the CTA attends for: they share the kept tiles.
template <class C>
__device__ __forceinline__ uint32_t scan_page(const Params& p, uint32_t s_chunk, uint32_t s_query,
                                              const LaneQuery<C>& lane_query, float needed,
                                              const float* s_pseudo_max, int num_rows, int lane) {
  const uint32_t code_bytes = (C::kDim << p.page_shift) / 4;
  const int num_halves = 1 << (p.page_shift - 6);
  uint32_t hits = 0;
  const auto scan_block = [&](const ScanQuery<C>& query) {
#pragma unroll 1
    for (int half = 0; half < num_halves; ++half) {
      hits |= scan_half_page<C>(s_chunk + half * (C::kDim * 16), query, p.sixteen, lane)
              << (kHalfPageTiles * half);
    }
  };
  if constexpr (C::kTwoLanesFold) {
    scan_block(fold_for_scan<C>(p, lane_query, s_chunk + code_bytes, needed, lane));
  } else {
#pragma unroll 1
    for (int block = 0; block < p.num_row_blocks; ++block) {
      const int row = 8 * block + (lane >> 2);
      LaneQuery<C> loaded;
      loaded.load(s_query, block, lane);
      scan_block(fold_for_scan<C>(p, loaded, s_chunk + code_bytes,
                                  needed_score(p, s_pseudo_max[row], row < num_rows), lane));
    }
  }
  return hits;
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCAN_CUH_
