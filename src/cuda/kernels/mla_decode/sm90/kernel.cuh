// The kernel: prologue, roles and their loops. merge.cuh has the second kernel, which joins the
// partial results of sequences that were split.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_KERNEL_CUH_

#include "cuda/kernels/mla_decode/sm90/epilogue.cuh"

namespace longdecode::cuda::mla_sm90 {

// Position in a ring of `kSlots` and the parity of the phase that fills it next.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

// The segment at a position, once the producer has published it.
template <class C>
__device__ __forceinline__ Segment read_segment(uint32_t s_base,
                                                const RingPosition<kSegmentSlots>& position) {
  ptx::mbarrier_wait(LD_SHARED(C, s_base, segment_full) + 8 * position.slot, position.parity);
  const uint32_t s_segment = LD_SHARED(C, s_base, segments) + 32 * position.slot;
  const int4 a = ptx::load_shared_int4(s_segment), b = ptx::load_shared_int4(s_segment + 16);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// The consumer warp will not read the segment again.
template <class C>
__device__ __forceinline__ void release_segment(uint32_t s_base,
                                                RingPosition<kSegmentSlots>& position) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) {
    ptx::mbarrier_arrive(LD_SHARED(C, s_base, segment_empty) + 8 * position.slot);
  }
  position.advance();
}

// The query rows of the segment in shared memory, visible to wgmma. `loaded` says which
// sequence's rows are there or on their way. By the 128 scoring threads.
template <class C>
__device__ __forceinline__ void prefetch_query(const Params& params, uint32_t s_base,
                                               const Segment& segment, int row_block, int& loaded,
                                               int tid) {
  if (segment.num_tiles <= 0 || segment.sequence == loaded) return;
  ptx::copy_async_wait_all();                   // of a wrong guess
  ptx::named_barrier_sync(kScoreBarrier, 128);  // every warp is done reading the old rows
  load_query<C>(params, s_base, segment.sequence, row_block, tid);
  loaded = segment.sequence;
}

__device__ __forceinline__ void await_query() {
  ptx::copy_async_wait_all();
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(kScoreBarrier, 128);
}

// Masks and the maximum of a tile's scores; a kScoreBarrier must follow.
template <class C>
__device__ __forceinline__ void mask_and_reduce(const Visibility& visibility, uint32_t s_base,
                                                int tile, int tid,
                                                float (&scores)[C::kAccumulator]) {
  if (visibility.cuts(tile)) mask_scores<C>(visibility, tile, tid, scores);
  float tile_max[C::kThreadRows];
#pragma unroll
  for (int i = 0; i < C::kThreadRows; ++i) {
    const int low = (i >> 1) * 4 + (i & 1);
    tile_max[i] = fmaxf(scores[low], scores[low + 2]);
  }
  reduce_in_warp<C, false>(tile_max, s_base, tid);
}

// P^T and the factors are complete: by the scoring warps of split roles.
template <class C>
__device__ __forceinline__ void publish_weights(uint32_t s_base, int tid, bool changed) {
  if (tid == 0) ptx::store_shared(LD_SHARED(C, s_base, must_rescale), changed ? 1.0f : 0.0f);
  ptx::fence_proxy_async();
  __syncwarp();
  if ((tid & 31) == 0) ptx::mbarrier_arrive(LD_SHARED(C, s_base, p_full));
}

template <class C>
__device__ __forceinline__ void rescale_if_told(
    uint32_t s_base, int tid, float (&output)[C::kThreadChunks][C::kAccumulator]) {
  if (ptx::load_shared_float(LD_SHARED(C, s_base, must_rescale)) == 0.0f) return;
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

// rows <= 32: one warpgroup does everything.
template <class C>
__device__ __forceinline__ void consume(const Params& params, uint32_t s_base, int row_block,
                                        int loaded, int tid) {
  RingPosition<kSegmentSlots> segment_position;
  RingPosition<kStages> stage;
  bool is_first = true;  // tile of the CTA
  Segment segment = read_segment<C>(s_base, segment_position);
  prefetch_query<C>(params, s_base, segment, row_block, loaded, tid);
#pragma unroll 1
  while (segment.sequence != kNoMoreSegments) {
    release_segment<C>(s_base, segment_position);
    const int query_len = query_len_of(params, segment.sequence);
    const Visibility visibility{params, segment.kv_len, query_len, row_block * C::kRows};
    float output[C::kThreadChunks][C::kAccumulator] = {};
    SoftmaxState<C> state;
    state.reset();
    await_query();
#pragma unroll 1
    for (int i = 0; i < segment.num_tiles; ++i) {
      const int tile = segment.first_tile + i * segment.tile_stride;
      const uint32_t s_stage = LD_SHARED(C, s_base, ring) + stage.slot * kStageBytes;
      float scores[C::kAccumulator], factor[C::kThreadRows];
      issue_scores<C>(s_base, s_stage, scores, [&](int box) {
        if (box == 0) {
          ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full) + 8 * stage.slot, stage.parity);
        } else if (is_first) {
          ptx::mbarrier_wait(LD_SHARED(C, s_base, first_full) + 8 * (box - 1), 0);
        }
      });
      is_first = false;
      ptx::wgmma_wait<0>();
      mask_and_reduce<C>(visibility, s_base, tile, tid, scores);
      ptx::named_barrier_sync(kScoreBarrier, 128);
      zero_tail<C>(s_stage, segment.kv_len - tile * kTileTokens, tid);
      const bool changed = exponentiate<C>(s_base, params.softmax_scale_log2e, tid, scores, state,
                                           [&](int j, float2 pair) {
                                             factor[2 * j] = pair.x;
                                             factor[2 * j + 1] = pair.y;
                                           });
      ptx::fence_proxy_async();
      if (i > 0 && __any_sync(kFullWarp, changed)) rescale<C>(output, factor);
      ptx::named_barrier_sync(kScoreBarrier, 128);
      issue_values<C>(s_base, s_stage, output);
      ptx::wgmma_wait<0>();
      if ((tid & 31) == 0) {
        ptx::mbarrier_arrive(LD_SHARED(C, s_base, k_empty) + 8 * stage.slot);
      }
      stage.advance();
    }
    finish_rows<C>(params, s_base, segment, row_block, query_len, state, tid);
    const Segment next = read_segment<C>(s_base, segment_position);
    prefetch_query<C>(params, s_base, next, row_block, loaded, tid);
    if (segment.num_splits > 1) {
      store_partial<C>(params, segment, row_block, 0, output, tid);
    } else {
      ptx::named_barrier_sync(kScoreBarrier, 128);  // row_inverse is there
      store_output<C>(params, s_base, segment, row_block, query_len, 0, output, tid);
    }
    segment = next;
  }
}

// rows >= 48, warps 0-3: scores, softmax, P^T.
template <class C>
__device__ __forceinline__ void score(const Params& params, uint32_t s_base, int row_block,
                                      int loaded, int tid) {
  RingPosition<kSegmentSlots> segment_position;
  RingPosition<kStages> stage;
  RingPosition<1> weights;
  Segment segment = read_segment<C>(s_base, segment_position);
  prefetch_query<C>(params, s_base, segment, row_block, loaded, tid);
#pragma unroll 1
  while (segment.sequence != kNoMoreSegments) {
    const int query_len = query_len_of(params, segment.sequence);
    const Visibility visibility{params, segment.kv_len, query_len, row_block * C::kRows};
    SoftmaxState<C> state;
    state.reset();
    if (segment.num_tiles > 0) await_query();
#pragma unroll 1
    for (int i = 0; i < segment.num_tiles; ++i) {
      const int tile = segment.first_tile + i * segment.tile_stride;
      const uint32_t s_stage = LD_SHARED(C, s_base, ring) + stage.slot * kStageBytes;
      float scores[C::kAccumulator];
      ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full) + 8 * stage.slot, stage.parity);
      issue_scores<C>(s_base, s_stage, scores, [](int) {});
      ptx::wgmma_wait<0>();
      mask_and_reduce<C>(visibility, s_base, tile, tid, scores);
      ptx::named_barrier_sync(kScoreBarrier, 128);
      zero_tail<C>(s_stage, segment.kv_len - tile * kTileTokens, tid);
      const uint32_t s_factor = LD_SHARED(C, s_base, row_factor) + 8 * tid;
      // The last tile's products are done by now: they were issued before these scores.
      ptx::mbarrier_wait(LD_SHARED(C, s_base, p_empty), weights.parity ^ 1);
      const bool changed = exponentiate<C>(s_base, params.softmax_scale_log2e, tid, scores, state,
                                           [&](int j, float2 pair) {
                                             if (tid < 4)
                                               ptx::store_shared(s_factor + 32 * j, pair);
                                           });
      publish_weights<C>(s_base, tid, __any_sync(kFullWarp, changed));
      stage.advance();
      weights.advance();
    }
    const RingPosition<kSegmentSlots> finished = segment_position;
    segment_position.advance();
    prefetch_query<C>(params, s_base, read_segment<C>(s_base, segment_position), row_block, loaded,
                      tid);
    segment_position = finished;
    segment = read_segment<C>(s_base, segment_position);  // again: registers are short
    ptx::named_barrier_sync(kConsumerBarrier, 384);       // row_inverse of the last segment is read
    finish_rows<C>(params, s_base, segment, row_block, query_len_of(params, segment.sequence),
                   state, tid);
    ptx::named_barrier_sync(kConsumerBarrier, 384);
    release_segment<C>(s_base, segment_position);
    segment = read_segment<C>(s_base, segment_position);
  }
}

// rows >= 48, warps 4-11: each warpgroup accumulates half of the value dims.
template <class C>
__device__ __forceinline__ void accumulate(const Params& params, uint32_t s_base, int half,
                                           int tid) {
  RingPosition<kSegmentSlots> segment_position;
  RingPosition<kStages> stage;
  RingPosition<1> weights;
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
      store_partial<C>(params, segment, row_block, first_chunk, output, thread);
    }
    ptx::named_barrier_sync(kConsumerBarrier, 384);
    ptx::named_barrier_sync(kConsumerBarrier, 384);  // row_inverse is there
    if (segment.num_splits == 1) {
      store_output<C>(params, s_base, segment, row_block, query_len_of(params, segment.sequence),
                      first_chunk, output, thread);
    }
    release_segment<C>(s_base, segment_position);
    segment = read_segment<C>(s_base, segment_position);
  }
}

// All threads; ends with __syncthreads.
template <class C>
__device__ __forceinline__ void set_up(const Params& params, uint32_t s_base) {
  if (threadIdx.x == 32 * C::kProducerWarp) {
    constexpr int kValueWarps = C::kSplitRoles ? 8 : 4;
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(LD_SHARED(C, s_base, k_full) + 8 * i, 1);
      ptx::mbarrier_init(LD_SHARED(C, s_base, k_empty) + 8 * i, kValueWarps);
    }
    for (int i = 0; i < kFirstBoxes - 1; ++i) {
      ptx::mbarrier_init(LD_SHARED(C, s_base, first_full) + 8 * i, 1);
    }
    for (int i = 0; i < kSegmentSlots; ++i) {
      ptx::mbarrier_init(LD_SHARED(C, s_base, segment_full) + 8 * i, 1);
      ptx::mbarrier_init(LD_SHARED(C, s_base, segment_empty) + 8 * i, C::kConsumerWarps);
    }
    ptx::mbarrier_init(LD_SHARED(C, s_base, p_full), 4);
    ptx::mbarrier_init(LD_SHARED(C, s_base, p_empty), 8);
    ptx::fence_mbarrier_init();
  }
  if (params.batch > kSmallBatch && !params.fixed_splits) {
    // The sums lie in the ring: the producer reads them before it issues the first load.
    int* s_sums = reinterpret_cast<int*>(__cvta_shared_to_generic(LD_SHARED(C, s_base, ring)));
    const int size = Schedule::block_sequences(params.batch);
    const int num_blocks = (params.batch + size - 1) / size;
    for (int block = threadIdx.x / 32; block < num_blocks; block += C::kThreads / 32) {
      const int sum = Schedule::block_sum(params, block);
      if (threadIdx.x % 32 == 0) s_sums[block] = sum;
    }
  }
  __syncthreads();
}

template <int kInstance>
__global__ void __launch_bounds__(Config<kInstances[kInstance]>::kThreads, 1)
    mla_decode_kernel(const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap k_part_map,
                      const __grid_constant__ Params params) {
  using C = Config<kInstances[kInstance]>;
  extern __shared__ __align__(1024) uint8_t s_raw[];
  const uint32_t s_base = ptx::shared_address(s_raw);
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);

  // Guess that the schedule is strided: page ids and query rows are on their way before the
  // lengths are known.
  PageWindow pages;
  Schedule schedule;
  const auto fetch_ahead = [&] {
    const Place place(params);
    schedule.prefetch(params, place.worker);
    pages.init(params);
    if (place.guess < 0) return;
    const int num_splits = static_cast<int>(params.num_splits.value);
    pages.look_up(params, place.guess, place.worker - place.guess * num_splits, num_splits,
                  params.block_table_stride);
  };
  if (warp == C::kProducerWarp) {
    if (threadIdx.x % 32 == 0) ptx::prefetch_tensor_map(C::kSplitRoles ? &k_map : &k_part_map);
    if constexpr (!C::kSplitRoles) fetch_ahead();
  } else if (const Place place(params); warp < 4 && place.guess >= 0) {
    load_query<C>(params, s_base, place.guess, place.row_block, threadIdx.x);
  }
  set_up<C>(params, s_base);
  ptx::launch_dependents();  // the merge kernel; earlier, its start delays this one's by 0.2 us

  if (warp >= C::kProducerWarp) {
    if constexpr (C::kSplitRoles) ptx::decrease_registers<C::kProducerRegisters>();
    if (warp > C::kProducerWarp) return;
    if constexpr (C::kSplitRoles) fetch_ahead();  // registers are short: not across the split
    const int* s_sums =
        reinterpret_cast<const int*>(__cvta_shared_to_generic(LD_SHARED(C, s_base, ring)));
    schedule.init(params, s_sums);
    ptx::fence_proxy_async();
    produce<C>({&k_map, &k_part_map}, params, s_base, schedule, pages);
  } else if constexpr (!C::kSplitRoles) {
    const Place place(params);
    consume<C>(params, s_base, place.row_block, place.guess, threadIdx.x);
  } else if (warp < 4) {
    ptx::increase_registers<C::kScoreRegisters>();
    const Place place(params);
    score<C>(params, s_base, place.row_block, place.guess, threadIdx.x);
  } else {
    ptx::increase_registers<C::kValueRegisters>();
    accumulate<C>(params, s_base, warp / 4 - 1, threadIdx.x & 127);
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_KERNEL_CUH_
