// A sequence of kExchangeSplits tiles, one for each of as many CTAs, is not merged from partial
// results: a tile's weights P (2 KB for 16 rows) are 16 times smaller than a partial. Each CTA
// scores its tile and stores P, relative to the tile's own maximum, with the number of the run in
// every 16 bytes (see merge.cuh). With the weights of all tiles it accumulates one chunk of 64
// value dims over the whole sequence; the other tiles' chunks have come by TMA meanwhile. Tiles
// have accumulators of their own, which are joined in fp32 once the maxima and sums are there.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EXCHANGE_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EXCHANGE_CUH_

#include "cuda/kernels/mla_decode/sm90/merge.cuh"
#include "cuda/kernels/mla_decode/sm90/segments.cuh"

namespace longdecode::cuda::mla_sm90 {

// P of every tile lies over the query rows, which nobody reads after the scores.
template <class C>
__device__ __forceinline__ uint32_t exchanged_weights(uint32_t s_base, int tile) {
  static_assert(kExchangeSplits * C::kRows * 128 <= kKeyChunks * C::kQChunkBytes);
  return LD_SHARED(C, s_base, q) + tile * C::kRows * 128;
}

// Lanes 0-15: where row lane % 8 of an 8x8 matrix goes, tokens 16 w + 8 (lane / 8), ....
__device__ __forceinline__ uint32_t exchanged_row(uint32_t s_weights, int block, int tid) {
  const int lane = tid & 31, warp = (tid >> 5) & 3;
  return s_weights + (8 * block + (lane & 7)) * 128 +
         (((2 * warp + ((lane >> 3) & 1)) ^ (lane & 7)) << 4);
}

// From the scores of the CTA's tile to P, to the others and to shared memory. By the 128 scoring
// threads; the maxima of all warps are in s.warp_rows and the scores of all warps done.
template <class C>
__device__ __forceinline__ void send_weights(const Params& params, uint32_t s_base,
                                             const Segment& segment, int row_block,
                                             const float (&scores)[C::kAccumulator],
                                             SoftmaxState<C>& state, int tid) {
  const uint32_t tag = ptx::load_shared_u32(LD_SHARED(C, s_base, tag));
  const uint32_t s_weights = exchanged_weights<C>(s_base, segment.split);
  uint4* g_to =
      partial_of<C>(params, row_block, partial_slot(segment.first_worker, segment.split)) + tid;
  float2 tile_max[C::kRowBlocks8];
#pragma unroll
  for (int j = 0; j < C::kRowBlocks8; ++j) {
    tile_max[j] = reduce_over_warps<C, false>(s_base, j, tid & 3);
  }
#pragma unroll
  for (int j = 0; j < C::kRowBlocks8; ++j) {
    const float scale = params.softmax_scale_log2e;
    state.row_max[2 * j] = tile_max[j].x * scale;
    state.row_max[2 * j + 1] = tile_max[j].y * scale;
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float row_max = state.row_max[2 * j + (i & 1)];
      const float base = row_max == -INFINITY ? 0.0f : row_max;
      p[i] = ptx::exp2_approx(fmaf(scores[4 * j + i], scale, -base));
    }
    state.row_sum[2 * j] = p[0] + p[2];
    state.row_sum[2 * j + 1] = p[1] + p[3];
    const uint32_t low = ptx::pack_pair<C::kIsF16>(p[0], p[1]);
    const uint32_t high = ptx::pack_pair<C::kIsF16>(p[2], p[3]);
    ptx::store_atomic_16(g_to + 128 * j, make_uint4(low, high, 0, tag));
    ptx::store_matrix_x2_transposed(exchanged_row(s_weights, j, tid), low, high);
  }
}

// The scoring threads' part of an exchanging segment: all but the products.
template <class C>
__device__ __forceinline__ void score_exchanged(const Params& params, uint32_t s_base,
                                                const Segment& segment, int row_block, int tid) {
  const int query_len = query_len_of(params, segment.sequence);
  const Visibility visibility{params, segment.kv_len, query_len, row_block * C::kRows};
  SoftmaxState<C> state;
  float scores[C::kAccumulator];
  await_query();
  issue_scores<C>(s_base, LD_SHARED(C, s_base, ring), scores, [&](int box) {
    ptx::mbarrier_wait(
        box == 0 ? LD_SHARED(C, s_base, k_full) : LD_SHARED(C, s_base, first_full) + 8 * (box - 1),
        0);
  });
  ptx::wgmma_wait<0>();
  mask_and_reduce<C>(visibility, s_base, segment.first_tile, tid, scores);
  ptx::named_barrier_sync(kScoreBarrier, 128);
  ptx::named_barrier_arrive(kScoredBarrier, C::kThreads);
  send_weights<C>(params, s_base, segment, row_block, scores, state, tid);
  ptx::named_barrier_sync(kScoreBarrier, 128);  // the maxima in s.warp_rows have been read
  collect_rows<C>(s_base, state, tid);
  finish_rows<C>(params, s_base, segment, row_block, query_len, tid);
}

// The other tiles' P, from memory to shared memory, by all 256 threads. A thread of warpgroup
// h takes what thread tid % 128 of another CTA has stored: blocks of 8 rows j of tile t with
// t * kRowBlocks8 + j = h, h + 2, ....
template <class C>
__device__ __forceinline__ void receive_weights(const uint4* g_partials, uint32_t s_base,
                                                uint32_t tag, const int4& split, int tid) {
  constexpr int kUnits = kExchangeSplits * C::kRowBlocks8 / 2;
  const int half = tid >> 7;
  uint4 v[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    v[u] = make_uint4(0, 0, 0, (2 * u + half) / C::kRowBlocks8 == split.w ? tag : ~tag);
  }
  // Not earlier: polling would disturb the loads of K.
  if (half == 1) ptx::named_barrier_sync(kScoredBarrier, C::kThreads);
  for (;;) {
    bool all_there = true;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int tile = (2 * u + half) / C::kRowBlocks8, j = (2 * u + half) % C::kRowBlocks8;
      const uint4* g_from = g_partials + partial_slot(split.y, tile) * C::kPartialUnits;
      if (v[u].w != tag) v[u] = ptx::load_atomic_16(g_from + 128 * j + (tid & 127));
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) all_there &= v[u].w == tag;
    if (__all_sync(kFullWarp, all_there)) break;
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int tile = (2 * u + half) / C::kRowBlocks8, j = (2 * u + half) % C::kRowBlocks8;
    if (tile == split.w) continue;
    ptx::store_matrix_x2_transposed(exchanged_row(exchanged_weights<C>(s_base, tile), j, tid),
                                    v[u].x, v[u].y);
  }
}

// Maxima and sums of rows 8 block ... 8 block + 7 of all tiles, by one warp: lane 8 i + r has row r
// of tiles i and i + 4.
struct TileStats {
  uint4 v[2];

  template <class C>
  __device__ __forceinline__ void load(const uint4* g_partials, const int4& split, int block,
                                       int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      v[i] = ptx::load_atomic_16(g_partials +
                                 partial_slot(split.y, (lane >> 3) + 4 * i) * C::kPartialUnits +
                                 C::kSlices * 32 + 8 * block + (lane & 7));
    }
  }
};

// What the accumulators of each tile count in the output, to s.p: [tile][row] fp32.
template <class C>
__device__ __forceinline__ void weigh_tiles(const Params& params, const uint4* g_partials,
                                            uint32_t s_base, uint32_t tag, int row_block,
                                            const int4& split, int query_len, int block, int lane,
                                            TileStats stats) {
  static_assert(kExchangeSplits == 8);
  while (!__all_sync(kFullWarp, stats.v[0].w == tag && stats.v[1].w == tag)) {
    stats.load<C>(g_partials, split, block, lane);
  }
  const float max_0 = __uint_as_float(stats.v[0].x), max_1 = __uint_as_float(stats.v[1].x);
  float row_max = fmaxf(max_0, max_1);
  row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, 8));
  row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, 16));
  const float f0 = MergeState::weight(max_0, row_max), f1 = MergeState::weight(max_1, row_max);
  float sum = fmaf(f0, __uint_as_float(stats.v[0].y), f1 * __uint_as_float(stats.v[1].y));
  sum += __shfl_xor_sync(kFullWarp, sum, 8);
  sum += __shfl_xor_sync(kFullWarp, sum, 16);
  const float inverse = sum > 0.0f ? ptx::reciprocal_approx(sum) : 0.0f;
  const int row = 8 * block + (lane & 7);
  const uint32_t s_to = LD_SHARED(C, s_base, p) + ((lane >> 3) * C::kRows + row) * 4;
  ptx::store_shared(s_to, f0 * inverse);
  ptx::store_shared(s_to + 4 * C::kRows * 4, f1 * inverse);
  if (split.w == 0 && lane < 8) {
    OutputRow(params, row_block * C::kRows + row, query_len)
        .store_lse(params, split.x, natural_lse(row_max, sum));
  }
}

// Chunk split.w of the output, by the 128 scoring threads, from the products of all tiles.
template <class C>
__device__ __forceinline__ void store_exchanged(
    const Params& params, uint32_t s_base, int row_block, const int4& split, int query_len,
    const float (&output)[kExchangeSplits][C::kAccumulator], int tid) {
  const int lane = tid & 31, warp = tid >> 5, c = lane & 3;
#pragma unroll
  for (int j = 0; j < C::kRowBlocks8; ++j) {
    float v[4] = {};
#pragma unroll
    for (int tile = 0; tile < kExchangeSplits; ++tile) {
      const float2 factor =
          ptx::load_shared_float2(LD_SHARED(C, s_base, p) + (tile * C::kRows + 8 * j + 2 * c) * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = fmaf((i & 1) == 0 ? factor.x : factor.y, output[tile][4 * j + i], v[i]);
      }
    }
    const OutputRow row(params, row_block * C::kRows + 8 * j + (lane >> 2), query_len);
    uint32_t* g_to = reinterpret_cast<uint32_t*>(row.o(params, split.x) + kChunkDims * split.w +
                                                 16 * warp + 2 * c);
    store_transposed(g_to, ptx::pack_pair<C::kIsF16>(v[0], v[1]), row);
    store_transposed(g_to + 4, ptx::pack_pair<C::kIsF16>(v[2], v[3]), row);
  }
}

// All 256 threads, after their roles: the CTA's chunk of the output of the exchanging sequence.
template <class C>
__device__ __forceinline__ void finish_exchange(const Params& params, uint32_t s_base,
                                                int row_block, int kv_len, int tid) {
  const int4 split = ptx::load_shared_int4(LD_SHARED(C, s_base, splits));
  const uint32_t tag = ptx::load_shared_u32(LD_SHARED(C, s_base, tag));
  const uint4* g_partials = partial_of<C>(params, row_block, 0);
  const int query_len = query_len_of(params, split.x);
  receive_weights<C>(g_partials, s_base, tag, split, tid);
  const int warp = __shfl_sync(kFullWarp, tid >> 5, 0), lane = tid & 31;
  TileStats stats;
  if (warp >= 4 && warp - 4 < C::kRowBlocks8) {
    stats.load<C>(g_partials, split, warp - 4, lane);
  }
  const uint32_t s_own = LD_SHARED(C, s_base, ring) + split.w * kChunkBytes;
  const uint32_t s_others = LD_SHARED(C, s_base, ring) + kStageBytes;
  ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full) + 8, 0);
  constexpr int kLast = kExchangeSplits - 1;
  zero_rows<1>(split.w == kLast ? s_own : s_others + kLast * kChunkBytes,
               kv_len - kLast * kTileTokens, tid, C::kThreads);
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(kMergeBarrier, C::kThreads);
  if (warp >= 4) {
    if (warp - 4 < C::kRowBlocks8) {
      weigh_tiles<C>(params, g_partials, s_base, tag, row_block, split, query_len, warp - 4, lane,
                     stats);
    }
    ptx::named_barrier_arrive(kWeightBarrier, C::kThreads);
    return;
  }
  float output[kExchangeSplits][C::kAccumulator];
  ptx::wgmma_fence();
#pragma unroll
  for (int tile = 0; tile < kExchangeSplits; ++tile) {
    const uint64_t v =
        ptx::wgmma_descriptor(tile == split.w ? s_own : s_others + tile * kChunkBytes);
    const uint64_t p = ptx::wgmma_descriptor(exchanged_weights<C>(s_base, tile));
#pragma unroll
    for (int i = 0; i < kTileTokens / 16; ++i) {
      ptx::Wgmma<C::kRows, C::kIsF16, true>::mma(output[tile], v + i * 128, p + i * 2, i != 0);
    }
  }
  ptx::wgmma_commit();
  ptx::named_barrier_sync(kWeightBarrier, C::kThreads);
  ptx::wgmma_wait<0>();
  store_exchanged<C>(params, s_base, row_block, split, query_len, output, tid);
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EXCHANGE_CUH_
