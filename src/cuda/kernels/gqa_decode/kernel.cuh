// A CTA: the producer warp beside the computing warps. What differs between architectures is in the
// loader.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_KERNEL_CUH_

#include "cuda/kernels/gqa_decode/epilogue.cuh"
#include "cuda/kernels/gqa_decode/produce.cuh"

namespace longdecode::cuda::gqa {

// All threads; ends with __syncthreads.
template <class C>
__device__ __forceinline__ void set_up(const Params& params, typename C::SharedStorage& s_storage,
                                       const Schedule<C>& schedule, uint32_t full_arrivals) {
  const uint32_t s_base = ptx::shared_address(&s_storage);
  const int compute_warps = blockDim.x / 32 - 1;
  if (threadIdx.x == 0) {
    for (int i = 0; i < params.num_stages; ++i) {
      ptx::mbarrier_init(LD_SHARED(C, s_base, k_full) + 8 * i, full_arrivals);
      ptx::mbarrier_init(LD_SHARED(C, s_base, v_full) + 8 * i, full_arrivals);
      ptx::mbarrier_init(LD_SHARED(C, s_base, empty) + 8 * i, compute_warps);
    }
    for (int i = 0; i < kSegmentSlots; ++i) {
      ptx::mbarrier_init(LD_SHARED(C, s_base, segment_full) + 8 * i, 1);
      ptx::mbarrier_init(LD_SHARED(C, s_base, segment_empty) + 8 * i, compute_warps);
    }
    ptx::fence_mbarrier_init();
  }
  if (Schedule<C>::needs_block_sums(params)) {
    const int size = TileRanges<SequenceTiles<C::kTileTokens>>::block_sequences(params.batch);
    const int num_blocks = (params.batch + size - 1) / size;
    for (int block = threadIdx.x / 32; block < num_blocks; block += blockDim.x / 32) {
      const int sum = schedule.ranges().block_sum(block);
      if (threadIdx.x % 32 == 0) s_storage.block_sums[block] = sum;
    }
  }
  __syncthreads();
}

// A computing warp: token_warp and row group of its CTA.
template <class C>
__device__ __forceinline__ void compute(const Params& params, typename C::SharedStorage& s_storage,
                                        int token_warp, int cta_group) {
  const uint32_t s_base = ptx::shared_address(&s_storage);
  const int row_group = Place(params).row_block * params.cta_row_groups + cta_group;
  const FragmentRows<C> rows(params, token_warp);
  RingPosition position, stage;
#pragma unroll 1
  for (;;) {
    const WorkItem item = next_item<C>(s_base, position);
    if (item.sequence == kNoMoreWork) return;
    const int query_len = __reduce_max_sync(kFullWarp, query_len_of(params, item.sequence));
    const Visibility visibility(params, item, row_group, query_len);
    QueryFragments<C> q;
    q.load(params, item, row_group, query_len);
    SoftmaxState state;
    float output[C::kDimBlocks][4] = {};
#pragma unroll 1
    for (int i = 0; i < item.num_tiles; ++i) {
      const int first = (item.first_tile + i) * C::kTileTokens;
      const uint32_t s_k = s_base + params.ring_offset + stage.slot * C::kStageBytes;
      ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full) + 8 * stage.slot, stage.parity);
      const auto await_values = [&] {
        ptx::mbarrier_wait(LD_SHARED(C, s_base, v_full) + 8 * stage.slot, stage.parity);
      };
      if (visibility.cuts(first, C::kTileTokens)) {
        attend_tile<C, true>(params, visibility, s_k, first + 16 * token_warp, rows, q, state,
                             output, await_values);
      } else {
        attend_tile<C, false>(params, visibility, s_k, first + 16 * token_warp, rows, q, state,
                              output, await_values);
      }
      __syncwarp();
      if ((threadIdx.x & 31) == 0) {
        ptx::mbarrier_arrive(LD_SHARED(C, s_base, empty) + 8 * stage.slot);
      }
      stage.advance(params.num_stages);
    }
    finish_item<C>(params, s_storage, item, cta_group, row_group, token_warp, state, output);
  }
}

template <class C, class Loader>
__device__ __forceinline__ void run_cta(const Loader& loader, const Params& params,
                                        uint8_t* s_raw) {
  auto& s_storage = *reinterpret_cast<typename C::SharedStorage*>(s_raw);
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);
  const int compute_warps = blockDim.x / 32 - 1;
  Schedule<C> schedule(params);
  if (warp == compute_warps && threadIdx.x % 32 == 0) loader.prefetch();
  ptx::wait_dependency();
  if (warp == compute_warps) {
    // Small batches and fixed splits need nothing from the other warps.
    if (!Schedule<C>::needs_block_sums(params)) {
      schedule.init(params, Place(params).worker, nullptr);
    }
  }
  set_up<C>(params, s_storage, schedule, Loader::kFullArrivals);
  ptx::launch_dependents();  // the merge kernel, or whoever follows
  if (warp == compute_warps) {
    if (Schedule<C>::needs_block_sums(params)) {
      schedule.init(params, Place(params).worker, s_storage.block_sums);
    }
    produce<C>(loader, params, ptx::shared_address(s_raw), schedule);
  } else {
    compute<C>(params, s_storage, warp % C::kTokenWarps, warp / C::kTokenWarps);
  }
}

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_KERNEL_CUH_
