// The kernel: prologue, roles and their loops.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_KERNEL_CUH_

#include "cuda/kernels/mla_decode/sm90/exchange.cuh"
#include "cuda/kernels/mla_decode/sm90/split_roles.cuh"

namespace longdecode::cuda::mla_sm90 {

// Waits for a tile's products, group by group, and stores the finished ones of a partial result;
// the caller stores the last group's once it has released the stage. The waits are unconditional:
// else ptxas serialises the groups (C7514).
template <class C, int kGroup = 0>
__device__ __forceinline__ void await_values(const Params& params, uint32_t s_base,
                                             const Segment& segment, int row_block,
                                             float (&output)[C::kThreadChunks][C::kAccumulator],
                                             int tid, bool stores) {
  ptx::wgmma_wait<C::kValueGroups - 1 - kGroup>();
  if constexpr (kGroup + 1 < C::kValueGroups) {
    constexpr int kBegin = kGroup * C::kGroupChunks, kEnd = kBegin + C::kGroupChunks;
#pragma unroll
    for (int chunk = kBegin; chunk < kEnd; ++chunk) ptx::wgmma_results(output[chunk]);
    if (stores) {
      store_partial<C, kBegin, kEnd>(params, s_base, segment, row_block, 0, output, tid);
    }
    await_values<C, kGroup + 1>(params, s_base, segment, row_block, output, tid, stores);
  }
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
    if (exchanges<C>(segment)) {
      score_exchanged<C>(params, s_base, segment, row_block, tid);
      segment = read_segment<C>(s_base, segment_position);
      continue;
    }
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
      if (visibility.cuts(tile)) zero_hidden<C, kValueChunks>(visibility, s_stage, tile, tid);
      const bool changed =
          exponentiate<C>(s_base, params.softmax_scale_log2e, tid, scores, state, factor);
      ptx::fence_proxy_async();
      if (i > 0 && __any_sync(kFullWarp, changed)) rescale<C>(output, factor);
      ptx::named_barrier_sync(kScoreBarrier, 128);
      issue_values<C>(s_base, s_stage, output);
      const bool is_last = i == segment.num_tiles - 1;
      if (is_last) collect_rows<C>(s_base, state, tid);
      await_values<C>(params, s_base, segment, row_block, output, tid,
                      is_last && segment.num_splits > 1);
      if ((tid & 31) == 0) {
        ptx::mbarrier_arrive(LD_SHARED(C, s_base, k_empty) + 8 * stage.slot);
      }
      stage.advance();
    }
    if (segment.num_tiles == 0) collect_rows<C>(s_base, state, tid);
    if (segment.num_splits > 1) {
      store_partial<C, C::kThreadChunks - C::kGroupChunks>(params, s_base, segment, row_block, 0,
                                                           output, tid);
    }
    finish_rows<C>(params, s_base, segment, row_block, query_len, tid);
    const Segment next = read_segment<C>(s_base, segment_position);
    prefetch_query<C>(params, s_base, next, row_block, loaded, tid);
    if (segment.num_splits == 1) {
      ptx::named_barrier_sync(kScoreBarrier, 128);  // row_inverse is there
      store_output<C>(params, s_base, segment, row_block, query_len, 0, output, tid);
    }
    segment = next;
  }
}

// Warps that only merge: returns when no more segments come.
template <class C>
__device__ __forceinline__ void await_end(uint32_t s_base) {
  RingPosition<kSegmentSlots> position;
  while (read_segment<C>(s_base, position).sequence != kNoMoreSegments) {
    release_segment<C>(s_base, position);
  }
}

// All threads; ends with __syncthreads.
template <class C>
__device__ __forceinline__ void set_up(const Params& params, uint32_t s_base,
                                       const Schedule& schedule) {
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
      ptx::mbarrier_init(LD_SHARED(C, s_base, segment_empty) + 8 * i, C::kSegmentReaders);
    }
    ptx::mbarrier_init(LD_SHARED(C, s_base, p_full), 4);
    ptx::mbarrier_init(LD_SHARED(C, s_base, p_half), 8);
    ptx::mbarrier_init(LD_SHARED(C, s_base, p_empty), 8);
    ptx::mbarrier_init(LD_SHARED(C, s_base, rows_full), 4);
    ptx::mbarrier_init(LD_SHARED(C, s_base, rows_empty), 8);
    ptx::fence_mbarrier_init();
  }
  if (params.batch > kSmallBatch && !params.fixed_splits) {
    // The sums lie in the ring: the producer reads them before it issues the first load.
    int* s_sums = reinterpret_cast<int*>(__cvta_shared_to_generic(LD_SHARED(C, s_base, ring)));
    const int size = schedule.ranges().block_sequences(params.batch);
    const int num_blocks = (params.batch + size - 1) / size;
    for (int block = threadIdx.x / 32; block < num_blocks; block += C::kThreads / 32) {
      const int sum = schedule.ranges().block_sum(block);
      if (threadIdx.x % 32 == 0) s_sums[block] = sum;
    }
  }
  __syncthreads();
}

template <int kInstance>
__global__ void __launch_bounds__(Config<kInstances[kInstance]>::kThreads, 1)
    mla_decode_kernel(const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap k_chunk_map,
                      const __grid_constant__ Params params) {
  using C = Config<kInstances[kInstance]>;
  extern __shared__ __align__(1024) uint8_t s_raw[];
  const uint32_t s_base = ptx::shared_address(s_raw);
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);

  // Guess that the schedule is strided: page ids and query rows are on their way before the
  // lengths are known.
  PageWindow pages, entries;
  Schedule schedule(params, C::kExchanges);
  uint32_t tag;
  const auto fetch_ahead = [&] {
    const Place place(params);
    schedule.prefetch(params, place.worker);
    tag = load_tag(params);
    pages.init(params);
    entries.init(params);
    if (place.guess < 0) return;
    const int num_splits = static_cast<int>(params.num_splits.value);
    pages.look_up(params, place.guess, place.worker - place.guess * num_splits, num_splits,
                  params.block_table_stride);
    if (C::kExchanges) entries.look_up(params, place.guess, 0, 1, params.block_table_stride);
  };
  if (warp == C::kProducerWarp) {
    if (threadIdx.x % 32 == 0) ptx::prefetch_tensor_map(C::kSplitRoles ? &k_map : &k_chunk_map);
    if constexpr (!C::kSplitRoles) fetch_ahead();
  } else if (const Place place(params); warp < 4 && place.guess >= 0) {
    load_query<C>(params, s_base, place.guess, place.row_block, threadIdx.x);
  }
  set_up<C>(params, s_base, schedule);

  const int* s_sums =
      reinterpret_cast<const int*>(__cvta_shared_to_generic(LD_SHARED(C, s_base, ring)));
  if constexpr (!C::kSplitRoles) {
    if (warp == C::kProducerWarp) {
      schedule.init(params, s_sums);
      ptx::fence_proxy_async();
      produce<C>({&k_map, &k_chunk_map}, params, s_base, schedule, pages, entries, tag);
      __syncwarp();
    } else if (warp > C::kProducerWarp) {
      await_end<C>(s_base);
    } else {
      const Place place(params);
      consume<C>(params, s_base, place.row_block, place.guess, threadIdx.x);
    }
    const int kv_len =
        static_cast<int>(ptx::load_shared_u32(LD_SHARED(C, s_base, exchanged_kv_len)));
    if (C::kExchanges && kv_len > 0) {
      finish_exchange<C>(params, s_base, Place(params).row_block, kv_len, threadIdx.x);
    } else {
      merge_splits<C>(params, s_base, Place(params).row_block, threadIdx.x);
    }
  } else if (warp >= C::kProducerWarp) {
    ptx::decrease_registers<C::kProducerRegisters>();
    if (warp > C::kProducerWarp) return;
    fetch_ahead();  // registers are short: not across the split
    schedule.init(params, s_sums);
    ptx::fence_proxy_async();
    produce<C>({&k_map, &k_chunk_map}, params, s_base, schedule, pages, entries, tag);
  } else if (warp < 4) {
    ptx::increase_registers<C::kScoreRegisters>();
    const Place place(params);
    score<C>(params, s_base, place.row_block, place.guess, threadIdx.x);
  } else {
    ptx::increase_registers<C::kValueRegisters>();
    accumulate<C>(params, s_base, warp / 4 - 1, threadIdx.x & 127);
    merge_splits<C>(params, s_base, Place(params).row_block, ptx::thread_index() - 128);
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_KERNEL_CUH_
