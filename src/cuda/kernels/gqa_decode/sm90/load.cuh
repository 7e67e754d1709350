// Loads of K and V tiles on sm_90: TMA boxes.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LOAD_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LOAD_CUH_

#include "cuda/kernels/gqa_decode/produce.cuh"
#include "cuda/ptx/tma.cuh"

namespace longdecode::cuda::gqa::sm90 {

template <class C>
struct Loader {
  static constexpr uint32_t kFullArrivals = 1;  // of a stage's K or V
  const CUtensorMap *k_map, *v_map;

  // By one thread.
  __device__ __forceinline__ void prefetch() const {
    ptx::prefetch_tensor_map(k_map);
    ptx::prefetch_tensor_map(v_map);
  }

  // K and V of one tile into a stage that its readers have left; a box for each page that the tile
  // touches and the sequence has.
  __device__ __forceinline__ void load_tile(const Params& params, uint32_t s_base,
                                            const RingPosition& stage, int head, int tile,
                                            PageWindow& pages) const {
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
      ptx::tma_load_5d(s_k + box * box_bytes, k_map, 0, row, 0, head, page_ids[box], s_k_full,
                       ptx::kEvictFirst);
    }
    ptx::mbarrier_arrive_expect_tx(s_v_full, loaded * box_bytes);
#pragma unroll
    for (int box = 0; box < 4; ++box) {
      if (box >= num_boxes) break;
      if (!pages.exists(entry + box)) continue;
      ptx::tma_load_5d(s_k + C::kPlaneBytes + box * box_bytes, v_map, 0, row, 0, head,
                       page_ids[box], s_v_full, ptx::kEvictFirst);
    }
  }
};

}  // namespace longdecode::cuda::gqa::sm90

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LOAD_CUH_
