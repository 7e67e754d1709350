// The producer warp on sm_90: schedule, block table, K and V tiles by TMA.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LOAD_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LOAD_CUH_

#include "cuda/kernels/gqa_decode/pipeline.cuh"
#include "cuda/kernels/gqa_decode/schedule.cuh"
#include "cuda/ptx/tma.cuh"

namespace longdecode::cuda::gqa::sm90 {

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

// So many first tiles of a CTA come with the L2's own policy, later ones are marked evict-first:
// where the cache is full of what gives way first, as after the benchmark's flush, marked lines
// come later (16384 tokens 19.3 us, with all marked 22.6; with none marked, so that they displace
// each other, 23.0; after other traffic it is the same).
template <class C>
inline constexpr int kPlainTiles = 128 * 1024 / C::kStageBytes;

__device__ __forceinline__ void load_box(uint32_t s_to, const CUtensorMap* map, int row, int head,
                                         int page_id, uint32_t s_full, bool evict_first) {
  if (evict_first) {
    ptx::tma_load_5d(s_to, map, 0, row, 0, head, page_id, s_full, ptx::kEvictFirst);
  } else {
    ptx::tma_load_5d(s_to, map, 0, row, 0, head, page_id, s_full);
  }
}

// K and V of one tile into a stage that its readers have left; a box for each page that the tile
// touches and the sequence has.
template <class C>
__device__ __forceinline__ void load_tile(const CUtensorMap* k_map, const CUtensorMap* v_map,
                                          const Params& params, uint32_t s_base,
                                          const RingPosition& stage, int head, int tile,
                                          PageWindow& pages, bool evict_first) {
  const int lane = threadIdx.x & 31;
  const int box_tokens = 1 << params.box_shift;
  const uint32_t box_bytes = box_tokens * C::kDim * 2;
  const int first_token = tile * C::kTileTokens;
  const int row = first_token & ((1 << params.page_shift) - 1);
  const int entry = first_token >> params.page_shift;
  const int num_boxes = C::kTileTokens >> params.box_shift;
  const uint32_t s_k_full = LD_SHARED(C, s_base, k_full) + 8 * stage.slot;
  const uint32_t s_v_full = LD_SHARED(C, s_base, v_full) + 8 * stage.slot;
  const uint32_t s_k = s_base + params.ring_offset + stage.slot * C::kStageBytes;
  int page_ids[4];
  int loaded = 0;
#pragma unroll
  for (int box = 0; box < 4; ++box) {
    if (box >= num_boxes) break;
    page_ids[box] = pages.page(entry + box);
    loaded += pages.exists(entry + box) ? 1 : 0;
  }
  if (lane != 0) return;
  ptx::mbarrier_wait(LD_SHARED(C, s_base, empty) + 8 * stage.slot, stage.parity ^ 1);
  ptx::mbarrier_arrive_expect_tx(s_k_full, loaded * box_bytes);
#pragma unroll
  for (int box = 0; box < 4; ++box) {
    if (box >= num_boxes) break;
    if (!pages.exists(entry + box)) continue;
    load_box(s_k + box * box_bytes, k_map, row, head, page_ids[box], s_k_full, evict_first);
  }
  ptx::mbarrier_arrive_expect_tx(s_v_full, loaded * box_bytes);
#pragma unroll
  for (int box = 0; box < 4; ++box) {
    if (box >= num_boxes) break;
    if (!pages.exists(entry + box)) continue;
    load_box(s_k + C::kPlaneBytes + box * box_bytes, v_map, row, head, page_ids[box], s_v_full,
             evict_first);
  }
}

// Tells the merge kernel where the splits are: see Params::g_split_info.
__device__ __forceinline__ void store_split_info(const Params& params, const Place& place, int pair,
                                                 int num_splits) {
  if (params.merges_by_pair || place.row_block != 0 || (threadIdx.x & 31) != 0) return;
  params.g_split_info[2 * place.worker] = pair;
  params.g_split_info[2 * place.worker + 1] = num_splits;
}

template <class C>
__device__ __forceinline__ void produce(const CUtensorMap* k_map, const CUtensorMap* v_map,
                                        const Params& params, uint32_t s_base,
                                        Schedule<C>& schedule) {
  RingPosition stage, slot;
  const Place place(params);
  store_split_info(params, place, 0, 0);
  int num_loaded = 0;  // tiles
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
      load_tile<C>(k_map, v_map, params, s_base, stage, item.head, item.first_tile + i, pages,
                   num_loaded++ >= kPlainTiles<C>);
      stage.advance(params.num_stages);
      if (i == 0) publish<C>(s_base, slot, item);  // after the first load, which nothing may delay
    }
    slot.advance(kSegmentSlots);
  }
  WorkItem last{};
  last.sequence = kNoMoreWork;
  publish<C>(s_base, slot, last);
}

}  // namespace longdecode::cuda::gqa::sm90

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LOAD_CUH_
