// Loads of K and V tiles on sm_80: 16 bytes a lane by cp.async.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LOAD_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LOAD_CUH_

#include "cuda/kernels/gqa_decode/produce.cuh"
#include "cuda/kernels/gqa_decode/sm80/pools.h"

namespace longdecode::cuda::gqa::sm80 {

template <class C>
struct Loader {
  static constexpr uint32_t kFullArrivals = 32;        // of a stage's K or V: every lane's
  static constexpr int kBlocks = C::kTileTokens / 16;  // no page is smaller
  static constexpr int kPieces = C::kDim / 8;          // of 16 bytes, of a token
  static constexpr int kStep = 32 / kPieces;           // tokens of a warp's copy
  static_assert(32 % kPieces == 0 && C::kRowBytes == 128);
  Pools pools;

  __device__ __forceinline__ void prefetch() const {}

  // K and V of one tile into a stage that its readers have left: pages that the tile touches and
  // the sequence has. The tile is one box (Params::box_shift), whatever the page size.
  __device__ __forceinline__ void load_tile(const Params& params, uint32_t s_base,
                                            const RingPosition& stage, int head, int tile,
                                            PageWindow& pages) const {
    const int first_token = tile * C::kTileTokens;
    const uint32_t s_k = s_base + params.ring_offset + stage.slot * C::kStageBytes;
    int page_ids[kBlocks];  // -1: none
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int entry = (first_token + 16 * block) >> params.page_shift;
      const int page_id = pages.page(entry);
      page_ids[block] = pages.exists(entry) ? page_id : -1;
    }
    ptx::mbarrier_wait(LD_SHARED(C, s_base, empty) + 8 * stage.slot, stage.parity ^ 1);
    load_plane(params, pools.k, s_k, head, first_token, page_ids);
    ptx::mbarrier_arrive_after_copies(LD_SHARED(C, s_base, k_full) + 8 * stage.slot);
    load_plane(params, pools.v, s_k + C::kPlaneBytes, head, first_token, page_ids);
    ptx::mbarrier_arrive_after_copies(LD_SHARED(C, s_base, v_full) + 8 * stage.slot);
  }

 private:
  static __device__ __forceinline__ void load_plane(const Params& params, const Pool& pool,
                                                    uint32_t s_plane, int head, int first_token,
                                                    const int (&page_ids)[kBlocks]) {
    const int lane = threadIdx.x & 31, piece = lane % kPieces, first = lane / kPieces;
    const uint16_t* g_head = pool.g_rows + head * pool.head_stride + 8 * piece;
    const uint32_t s_first = s_plane + piece / 8 * (C::kTileTokens * C::kRowBytes);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (page_ids[block] < 0) continue;
      const int row = ((first_token + 16 * block) & ((1 << params.page_shift) - 1)) + first;
      const uint16_t* g_from =
          g_head + page_ids[block] * pool.page_stride + row * pool.token_stride;
#pragma unroll
      for (int token = 16 * block; token < 16 * block + 16; token += kStep) {
        const int at = token + first;
        ptx::copy_async_16(s_first + at * C::kRowBytes + ((piece % 8 ^ at % 8) << 4), g_from, 16);
        g_from += kStep * pool.token_stride;
      }
    }
  }
};

}  // namespace longdecode::cuda::gqa::sm80

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LOAD_CUH_
