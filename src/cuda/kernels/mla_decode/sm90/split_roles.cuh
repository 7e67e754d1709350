// rows >= 48: one warpgroup scores, two accumulate.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SPLIT_ROLES_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SPLIT_ROLES_CUH_

#include "cuda/kernels/mla_decode/sm90/merge.cuh"
#include "cuda/kernels/mla_decode/sm90/rows.cuh"
#include "cuda/kernels/mla_decode/sm90/segments.cuh"

namespace longdecode::cuda::mla_sm90 {

// The warp's accesses come before what waits for the barrier.
__device__ __forceinline__ void arrive_warp(uint32_t s_barrier, int tid) {
  __syncwarp();
  if ((tid & 31) == 0) ptx::mbarrier_arrive(s_barrier);
}

template <class C>
__device__ __forceinline__ void rescale_if_told(
    uint32_t s_base, int tid, float (&output)[C::kThreadChunks][C::kAccumulator]) {
  const float4 told = ptx::load_shared_float4(LD_SHARED(C, s_base, must_rescale));
  if (told.x + told.y + told.z + told.w == 0.0f) return;
  float factor[C::kThreadRows];
#pragma unroll
  for (int j = 0; j < C::kRowBlocks8; ++j) {
    const float2 pair =
        ptx::load_shared_float2(LD_SHARED(C, s_base, row_factor) + (8 * j + 2 * (tid & 3)) * 4);
    factor[2 * j] = pair.x;
    factor[2 * j + 1] = pair.y;
  }
  rescale<C>(output, factor);
}

// One tile of the scoring warps, from its scores to P and the factors in shared memory.
// last_parity: of the barriers of the last tile's products.
template <class C>
__device__ __forceinline__ void score_tile(const Visibility& visibility, uint32_t s_base,
                                           uint32_t s_stage, int tile, uint32_t last_parity,
                                           int tid, RowState& state) {
  float scores[kRowScores];
  // The first half of the last tile's products goes first, at the tensor cores' full rate: these
  // release their stage earlier, and the scores end no later.
  ptx::mbarrier_wait(LD_SHARED(C, s_base, p_half), last_parity);
  issue_row_scores<C>(s_base, s_stage, scores);
  ptx::wgmma_wait<0>();
  if (visibility.cuts(tile)) {
    mask_row_scores(visibility, tile, tid, scores);
    ptx::named_barrier_sync(kScoreBarrier, 128);  // the scores of all warps are done
    zero_hidden<C, kValueChunks>(visibility, s_stage, tile, tid);
  }
  float factor[2];
  uint32_t packed[kRowScores / 2];
  const bool is_used = C::kRows == 64 || 16 * (tid >> 5) < C::kRows;
  bool changed = false;
  if (is_used) {
    changed =
        exponentiate_rows<C>(visibility.params.softmax_scale_log2e, scores, state, factor, packed);
  }
  // The last tile's products are done with P and the factors.
  ptx::mbarrier_wait(LD_SHARED(C, s_base, p_empty), last_parity);
  if (is_used) store_weights<C>(s_base, tid, factor, packed);
  ptx::fence_proxy_async();
  __syncwarp();
  if ((tid & 31) == 0) {
    ptx::store_shared(LD_SHARED(C, s_base, must_rescale) + 4 * (tid >> 5), changed ? 1.0f : 0.0f);
    ptx::mbarrier_arrive(LD_SHARED(C, s_base, p_full));
  }
}

// rows >= 48, warps 0-3: scores, softmax, P.
template <class C>
__device__ __forceinline__ void score(const Params& params, uint32_t s_base, int row_block,
                                      int loaded, int tid) {
  RingPosition<kSegmentSlots> segment_position;
  RingPosition<kStages> stage;
  RingPosition<1> weights, rows;
  Segment segment = read_segment<C>(s_base, segment_position);
  prefetch_query<C>(params, s_base, segment, row_block, loaded, tid);
#pragma unroll 1
  while (segment.sequence != kNoMoreSegments) {
    const int query_len = query_len_of(params, segment.sequence);
    const Visibility visibility{params, segment.kv_len, query_len, row_block * C::kRows};
    RowState state;
    if (segment.num_tiles > 0) await_query();
#pragma unroll 1
    for (int i = 0; i < segment.num_tiles; ++i) {
      ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full) + 8 * stage.slot, stage.parity);
      score_tile<C>(visibility, s_base, LD_SHARED(C, s_base, ring) + stage.slot * kStageBytes,
                    segment.first_tile + i * segment.tile_stride, weights.parity ^ 1, tid, state);
      stage.advance();
      weights.advance();
    }
    RingPosition<kSegmentSlots> next_position = segment_position;
    next_position.advance();
    const Segment next = read_segment<C>(s_base, next_position);
    prefetch_query<C>(params, s_base, next, row_block, loaded, tid);
    // All warps are done with the last segment's rows, here and in the accumulating warps.
    ptx::mbarrier_wait(LD_SHARED(C, s_base, rows_empty), rows.parity ^ 1);
    publish_row_stats<C>(s_base, tid, state);
    ptx::named_barrier_sync(kScoreBarrier, 128);
    finish_rows<C>(params, s_base, segment, row_block, query_len, tid);
    arrive_warp(LD_SHARED(C, s_base, rows_full), tid);
    rows.advance();
    release_segment<C>(s_base, segment_position);
    segment = next;
  }
}

// rows >= 48, warps 4-11: each warpgroup accumulates half of the value dims.
template <class C>
__device__ __forceinline__ void accumulate(const Params& params, uint32_t s_base, int half,
                                           int tid) {
  RingPosition<kSegmentSlots> segment_position;
  RingPosition<kStages> stage;
  RingPosition<1> weights, rows;
  Segment segment = read_segment<C>(s_base, segment_position);
#pragma unroll 1
  while (segment.sequence != kNoMoreSegments) {
    float output[C::kThreadChunks][C::kAccumulator] = {};
#pragma unroll 1
    for (int i = 0; i < segment.num_tiles; ++i) {
      const uint32_t s_values = LD_SHARED(C, s_base, ring) + stage.slot * kStageBytes +
                                half * C::kThreadChunks * kChunkBytes;
      ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full) + 8 * stage.slot, stage.parity);
      ptx::mbarrier_wait(LD_SHARED(C, s_base, p_full), weights.parity);
      if (i > 0) rescale_if_told<C>(s_base, tid, output);
      issue_values<C>(s_base, s_values, output);
      static_assert(C::kValueGroups == 2);
      ptx::wgmma_wait<1>();
      if ((tid & 31) == 0) ptx::mbarrier_arrive(LD_SHARED(C, s_base, p_half));
      ptx::wgmma_wait<0>();
      if ((tid & 31) == 0) {
        ptx::mbarrier_arrive(LD_SHARED(C, s_base, p_empty));
        ptx::mbarrier_arrive(LD_SHARED(C, s_base, k_empty) + 8 * stage.slot);
      }
      stage.advance();
      weights.advance();
    }
    segment = read_segment<C>(s_base, segment_position);  // again: registers are short
    const int row_block = Place(params).row_block;
    const int thread = ptx::thread_index() & 127;
    const int first_chunk = (ptx::thread_index() / 128 - 1) * C::kThreadChunks;
    if (segment.num_splits > 1) {
      store_partial<C>(params, s_base, segment, row_block, first_chunk, output, thread);
    }
    ptx::mbarrier_wait(LD_SHARED(C, s_base, rows_full), rows.parity);
    if (segment.num_splits == 1) {
      store_output<C>(params, s_base, segment, row_block, query_len_of(params, segment.sequence),
                      first_chunk, output, thread);
    }
    arrive_warp(LD_SHARED(C, s_base, rows_empty), thread);
    rows.advance();
    release_segment<C>(s_base, segment_position);
    segment = read_segment<C>(s_base, segment_position);
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SPLIT_ROLES_CUH_
