// The computing warps, and the prologue that all architectures share.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_KERNEL_CUH_

#include "cuda/kernels/gqa_decode/epilogue.cuh"
#include "cuda/kernels/gqa_decode/schedule.cuh"

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
    const int query_len = query_len_of(params, item.sequence);
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

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_KERNEL_CUH_
