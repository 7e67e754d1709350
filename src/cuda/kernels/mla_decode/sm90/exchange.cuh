// A sequence of two to kExchangeSplits tiles in a schedule with as many CTAs for it is not merged
// from partial results: a tile's weights P (2 KB for 16 rows) are 16 times smaller than a partial.
// Each CTA that has a tile scores it and stores P, relative to the tile's own maximum, with the
// number of the run in every 16 bytes (see merge.cuh). With the weights of all tiles each CTA
// accumulates one chunk of 64 value dims over the whole sequence; the other tiles' chunks have come
// by TMA meanwhile. Tiles have accumulators of their own, which are joined in fp32 once the maxima
// and sums are there. There may be fewer tiles than CTAs.
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

// Row sums of each scoring warp, [4][kRows] fp32, behind what weigh_tiles writes.
template <class C>
__device__ __forceinline__ uint32_t exchanged_sums(uint32_t s_base) {
  return LD_SHARED(C, s_base, p) + kExchangeSplits * C::kRows * 4;
}

// Chunk `split` of a tile's values.
template <class C>
__device__ __forceinline__ uint32_t exchanged_values(uint32_t s_base, int split, int tile) {
  return LD_SHARED(C, s_base, ring) +
         (tile == split ? split * kChunkBytes : kStageBytes + tile * kChunkBytes);
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
      const float base = exponent_base(state.row_max[2 * j + (i & 1)]);
      p[i] = ptx::exp2_approx(fmaf(scores[4 * j + i], scale, -base));
    }
    state.row_sum[2 * j] = p[0] + p[2];
    state.row_sum[2 * j + 1] = p[1] + p[3];
    const uint32_t low = ptx::pack_pair<C::kIsF16>(p[0], p[1]);
    const uint32_t high = ptx::pack_pair<C::kIsF16>(p[2], p[3]);
    ptx::store_atomic_16(g_to + 128 * j, make_uint4(low, high, 0, tag));
    ptx::store_matrix_x2_transposed(weights_row(s_weights, 8 * j, tid), low, high);
  }
}

// The maximum and the sum of a row of the CTA's tile to the others.
template <class C>
__device__ __forceinline__ void send_stats(const Params& params, uint32_t s_base,
                                           const Segment& segment, int row_block, int row) {
  float row_max[4], sum[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    row_max[w] = __uint_as_float(
        ptx::load_shared_u32(LD_SHARED(C, s_base, warp_rows) + (w * C::kRows + row) * 4));
    sum[w] =
        __uint_as_float(ptx::load_shared_u32(exchanged_sums<C>(s_base) + (w * C::kRows + row) * 4));
  }
  const float all_max = fmaxf(fmaxf(row_max[0], row_max[1]), fmaxf(row_max[2], row_max[3]));
  const float all_sum = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  uint4* g_to = partial_of<C>(params, row_block, partial_slot(segment.first_worker, segment.split));
  ptx::store_atomic_16(
      g_to + C::kSlices * 32 + row,
      make_uint4(__float_as_uint(all_max * params.softmax_scale_log2e), __float_as_uint(all_sum), 0,
                 ptx::load_shared_u32(LD_SHARED(C, s_base, tag))));
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
  if (segment.num_tiles == 0) {
    ptx::named_barrier_arrive(kSentBarrier, C::kThreads);
    return;
  }
  issue_scores<C>(s_base, LD_SHARED(C, s_base, ring), scores, [&](int box) {
    ptx::mbarrier_wait(
        box == 0 ? LD_SHARED(C, s_base, k_full) : LD_SHARED(C, s_base, first_full) + 8 * (box - 1),
        0);
  });
  ptx::wgmma_wait<0>();
  mask_and_reduce<C>(visibility, s_base, segment.first_tile, tid, scores);
  ptx::named_barrier_sync(kScoreBarrier, 128);
  send_weights<C>(params, s_base, segment, row_block, scores, state, tid);
  reduce_in_warp<C, true>(state.row_sum, exchanged_sums<C>(s_base), tid);
  ptx::named_barrier_sync(kScoreBarrier, 128);
  if (tid < C::kRows) send_stats<C>(params, s_base, segment, row_block, tid);
  ptx::named_barrier_arrive(kSentBarrier, C::kThreads);
}

// To look for others' words right after the own ones are stored only costs: those who look too
// early wait for a second round trip, and disturb CTAs that are behind.
__device__ __forceinline__ void wait_clocks(int clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

// P of tiles 4 half ... 4 half + 3, from memory to shared memory, by 128 threads, each of which
// takes what the thread of the same number has stored in another CTA.
template <class C>
__device__ __forceinline__ void receive_weights(const uint4* g_partials, uint32_t s_base,
                                                uint32_t tag, const int4& split, int num_tiles,
                                                int half, int tid) {
  constexpr int kTiles = kExchangeSplits / 2;
  uint4 v[kTiles][C::kRowBlocks8];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < C::kRowBlocks8; ++j) {
      const int tile = kTiles * half + i;
      v[i][j] = make_uint4(0, 0, 0, tile == split.w || tile >= num_tiles ? tag : ~tag);
    }
  }
  wait_clocks(160 + 12 * C::kRows);  // b16 512 -0.5 us; from 250 to 400 nearly the same
  for (;;) {
    bool all_there = true;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint4* g_from =
          g_partials + partial_slot(split.y, kTiles * half + i) * C::kPartialUnits + tid;
#pragma unroll
      for (int j = 0; j < C::kRowBlocks8; ++j) {
        if (v[i][j].w != tag) v[i][j] = ptx::load_atomic_16(g_from + 128 * j);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles * C::kRowBlocks8; ++i) {
      all_there &= v[i / C::kRowBlocks8][i % C::kRowBlocks8].w == tag;
    }
    if (__all_sync(kFullWarp, all_there)) break;
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int tile = kTiles * half + i;
    if (tile == split.w || tile >= num_tiles) continue;
#pragma unroll
    for (int j = 0; j < C::kRowBlocks8; ++j) {
      ptx::store_matrix_x2_transposed(weights_row(exchanged_weights<C>(s_base, tile), 8 * j, tid),
                                      v[i][j].x, v[i][j].y);
    }
  }
}

// Maxima and sums of rows 8 block ... 8 block + 7 of all tiles, by one warp: lane 8 i + r has row r
// of tiles i and i + 4.
struct TileStats {
  uint4 v[2];

  template <class C>
  __device__ __forceinline__ void load(const uint4* g_partials, uint32_t tag, const int4& split,
                                       int num_tiles, int block, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int tile = (lane >> 3) + 4 * i;
      v[i] = make_uint4(__float_as_uint(-INFINITY), 0, 0, tag);
      if (tile >= num_tiles) continue;
      v[i] = ptx::load_atomic_16(g_partials + partial_slot(split.y, tile) * C::kPartialUnits +
                                 C::kSlices * 32 + 8 * block + (lane & 7));
    }
  }
};

// What the accumulators of each tile count in the output, to s.p: [tile][row] fp32.
template <class C>
__device__ __forceinline__ void weigh_tiles(const Params& params, const uint4* g_partials,
                                            uint32_t s_base, uint32_t tag, int row_block,
                                            const int4& split, int num_tiles, int query_len,
                                            int block, int lane, TileStats stats) {
  static_assert(kExchangeSplits == 8);
  while (!__all_sync(kFullWarp, stats.v[0].w == tag && stats.v[1].w == tag)) {
    stats.load<C>(g_partials, tag, split, num_tiles, block, lane);
  }
  const float max_0 = __uint_as_float(stats.v[0].x), max_1 = __uint_as_float(stats.v[1].x);
  float row_max = fmaxf(max_0, max_1);
  row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, 8));
  row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, 16));
  const float f0 = part_weight(max_0, row_max), f1 = part_weight(max_1, row_max);
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
    const Params& params, uint32_t s_base, int row_block, const int4& split, int num_tiles,
    int query_len, const float (&output)[kExchangeSplits][C::kAccumulator], int tid) {
  const int lane = tid & 31, warp = tid >> 5, c = lane & 3;
#pragma unroll
  for (int j = 0; j < C::kRowBlocks8; ++j) {
    float v[4] = {};
#pragma unroll
    for (int tile = 0; tile < kExchangeSplits; ++tile) {
      if (tile >= num_tiles) continue;  // the products are of whatever was in shared memory
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

// The chunks of the other tiles have landed; what this thread has written of half of the tiles,
// zeros included, is visible to the products once a barrier follows.
template <class C>
__device__ __forceinline__ void await_chunks(const Visibility& visibility, uint32_t s_base,
                                             int split, int half, int tid) {
  ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full) + 8, 0);
  constexpr int kTiles = kExchangeSplits / 2;
  const int end = min(kTiles * (half + 1), num_tiles_of(visibility.kv_len));
  for (int tile = visibility.common_tokens() / kTileTokens; tile < end; ++tile) {
    if (tile < kTiles * half) continue;
    zero_hidden<C, 1>(visibility, exchanged_values<C>(s_base, split, tile), tile, tid);
  }
  ptx::fence_proxy_async();
}

// Products of half of the tiles, to be waited for.
template <class C>
__device__ __forceinline__ void issue_products(uint32_t s_base, int split, int half,
                                               float (&output)[kExchangeSplits][C::kAccumulator]) {
  constexpr int kTiles = kExchangeSplits / 2;
  ptx::wgmma_fence();
#pragma unroll
  for (int tile = kTiles * half; tile < kTiles * (half + 1); ++tile) {
    const uint64_t v = ptx::wgmma_descriptor(exchanged_values<C>(s_base, split, tile));
    const uint64_t p = ptx::wgmma_descriptor(exchanged_weights<C>(s_base, tile));
#pragma unroll
    for (int i = 0; i < kTileTokens / 16; ++i) {
      ptx::Wgmma<C::kRows, C::kIsF16, true>::mma(output[tile], v + i * 128, p + i * 2, i != 0);
    }
  }
  ptx::wgmma_commit();
}

// All 256 threads, after their roles: the CTA's chunk of the output of the exchanging sequence.
// Warps 4-7 bring the second half of the weights, while the first half's products run, then the
// factors.
template <class C>
__device__ __forceinline__ void finish_exchange(const Params& params, uint32_t s_base,
                                                int row_block, int kv_len, int tid) {
  const int4 split = ptx::load_shared_int4(LD_SHARED(C, s_base, splits));
  const uint32_t tag = ptx::load_shared_u32(LD_SHARED(C, s_base, tag));
  uint4* g_partials = partial_of<C>(params, row_block, 0);
  const int query_len = query_len_of(params, split.x);
  const int warp = __shfl_sync(kFullWarp, tid >> 5, 0), lane = tid & 31;
  const int num_tiles = num_tiles_of(kv_len);
  const Visibility visibility{params, kv_len, query_len, row_block * C::kRows};
  if (warp >= 4) {
    tid -= 128;
    ptx::named_barrier_sync(kSentBarrier, C::kThreads);
    receive_weights<C>(g_partials, s_base, tag, split, num_tiles, 1, tid);
    TileStats stats;
    if (warp - 4 < C::kRowBlocks8) {
      stats.load<C>(g_partials, tag, split, num_tiles, warp - 4, lane);
    }
    await_chunks<C>(visibility, s_base, split.w, 1, tid);
    __syncwarp();
    ptx::named_barrier_arrive(kReceivedBarrier, C::kThreads);
    if (warp - 4 < C::kRowBlocks8) {
      weigh_tiles<C>(params, g_partials, s_base, tag, row_block, split, num_tiles, query_len,
                     warp - 4, lane, stats);
    }
    __syncwarp();
    ptx::named_barrier_arrive(kWeighedBarrier, C::kThreads);
    return;
  }
  receive_weights<C>(g_partials, s_base, tag, split, num_tiles, 0, tid);
  await_chunks<C>(visibility, s_base, split.w, 0, tid);
  ptx::named_barrier_sync(kScoreBarrier, 128);
  float output[kExchangeSplits][C::kAccumulator];
  issue_products<C>(s_base, split.w, 0, output);
  ptx::named_barrier_sync(kReceivedBarrier, C::kThreads);
  issue_products<C>(s_base, split.w, 1, output);
  ptx::named_barrier_sync(kWeighedBarrier, C::kThreads);
  ptx::wgmma_wait<0>();
  store_exchanged<C>(params, s_base, row_block, split, num_tiles, query_len, output, tid);
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EXCHANGE_CUH_
