// The producer warp: schedule, block table, and tiles through a loader, of which each architecture
// has its own.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_PRODUCE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_PRODUCE_CUH_

#include "cuda/kernels/gqa_decode/pipeline.cuh"
#include "cuda/kernels/gqa_decode/schedule.cuh"

namespace longdecode::cuda::gqa {

// Page ids of 64 consecutive entries of a sequence's row of the block table, 2 a lane. The later 32
// are fetched when the earlier ones come into use.
class PageWindow {
 public:
  // Entries outside [first_page, num_pages) are neither read nor used.
  __device__ __forceinline__ void start(const Params& params, const WorkItem& item, int entry) {
    g_row_ = params.g_block_table + item.sequence * params.block_table_stride;
    first_page_ = item.first_token >> params.page_shift;
    num_pages_ = (item.kv_len + (1 << params.page_shift) - 1) >> params.page_shift;
    base_ = entry;
    ids_ = fetch(entry);
    next_ids_ = fetch(entry + 32);
  }
  __device__ __forceinline__ bool exists(int entry) const {
    return entry >= first_page_ && entry < num_pages_;
  }
  // By the whole warp; entries ascend.
  __device__ __forceinline__ int page(int entry) {
    while (entry >= base_ + 32) {
      base_ += 32;
      ids_ = next_ids_;
      next_ids_ = fetch(base_ + 32);
    }
    return __shfl_sync(kFullWarp, ids_, entry - base_);
  }

 private:
  __device__ __forceinline__ int fetch(int first) const {
    const int entry = first + static_cast<int>(threadIdx.x & 31);
    return exists(entry) ? ptx::load_global_i32(g_row_ + entry) : 0;
  }

  const int32_t* g_row_;
  int first_page_, num_pages_, base_;
  int ids_, next_ids_;
};

// Tells the merge kernel where the splits are: see Params::g_split_info.
__device__ __forceinline__ void store_split_info(const Params& params, const Place& place, int pair,
                                                 int num_splits) {
  if (params.merges_by_pair || place.row_block != 0 || (threadIdx.x & 31) != 0) return;
  params.g_split_info[2 * place.worker] = pair;
  params.g_split_info[2 * place.worker + 1] = num_splits;
}

template <class C, class Loader>
__device__ __forceinline__ void produce(const Loader& loader, const Params& params, uint32_t s_base,
                                        Schedule<C>& schedule) {
  RingPosition stage, slot;
  const Place place(params);
  store_split_info(params, place, 0, 0);
  TileSegment segment;
  while (schedule.next(params, segment)) {
    const WorkItem item = make_work_item<C>(params, segment);
    PageWindow pages;
    pages.start(params, item, (item.first_tile * C::kTileTokens) >> params.page_shift);
    if (segment.split == 1) {
      store_split_info(params, place, segment.sequence * params.num_kv_heads + segment.head,
                       segment.num_splits);
    }
    if (item.num_tiles == 0) publish<C>(s_base, slot, item);
#pragma unroll 1
    for (int i = 0; i < item.num_tiles; ++i) {
      loader.load_tile(params, s_base, stage, item.head, item.first_tile + i, pages);
      stage.advance(params.num_stages);
      if (i == 0) publish<C>(s_base, slot, item);  // after the first load, which nothing may delay
    }
    slot.advance(kSegmentSlots);
  }
  WorkItem last{};
  last.sequence = kNoMoreWork;
  publish<C>(s_base, slot, last);
}

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_PRODUCE_CUH_
