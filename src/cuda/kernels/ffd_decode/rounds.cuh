// From the warps that scan to those that attend: rounds of one page of each scan warp.
//
// Rounds are counted over all items of a CTA; round n uses entry n % kRounds. A scan warp writes
// its hits and page ids, and arrives at round_full; an attend warp that has taken what it needs
// arrives at round_empty. Which tiles an attend warp gets, and in which order, follows from the
// hits alone.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_ROUNDS_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_ROUNDS_CUH_

#include "cuda/kernels/ffd_decode/load.cuh"

namespace longdecode::cuda::ffd {

// Named barriers beside that of __syncthreads: the tiles of the pseudo-max are on their way; of the
// warps that scan alone.
inline constexpr int kFirstTilesBarrier = 1, kScanBarrier = 2;

__device__ __forceinline__ int round_entry(int round) { return round & (kRounds - 1); }
__device__ __forceinline__ uint32_t round_parity(int round) {
  return static_cast<uint32_t>(round / kRounds) & 1;
}

// By all warps, before a barrier. One lane each, with the same address for the whole warp: lanes
// with addresses of their own would take turns.
template <class C>
__device__ __forceinline__ void init_barriers(const Params& p, typename C::SharedStorage& s,
                                              int warp) {
  if (ptx::elect_lane()) {
    for (int i = warp; i < kRounds; i += C::kScanWarps + C::kAttendWarps) {
      ptx::mbarrier_init(ptx::shared_address(&s.round_full[i]), C::kScanWarps);
      ptx::mbarrier_init(ptx::shared_address(&s.round_empty[i]), C::kAttendWarps);
    }
    if (warp < C::kScanWarps) {
      for (int i = 0; i < p.num_stages; ++i) {
        ptx::mbarrier_init(ptx::shared_address(&s.chunk_full[warp][i]), ChunkRing::kArrivals<C>);
      }
    } else if (warp == C::kScanWarps) {
      ptx::mbarrier_init(ptx::shared_address(&s.query_full), C::kScanThreads);
      ptx::mbarrier_init(ptx::shared_address(&s.pseudo_max_full), C::kThreads);
      ptx::mbarrier_init(ptx::shared_address(&s.states_full), C::kThreads - C::kScanThreads);
    }
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
}

// By a lane that is through with its part of what the barrier stands for, once an item. (If one
// lane arrived for a warp, racecheck would not see that the others' accesses come before.)
__device__ __forceinline__ void arrive_lane(uint64_t& s_barrier) {
  ptx::mbarrier_arrive(ptx::shared_address(&s_barrier));
}
// By a warp that has read the hits of a round.
__device__ __forceinline__ void arrive_warp(uint64_t& s_barrier) {
  __syncwarp();
  if (ptx::elect_lane()) ptx::mbarrier_arrive(ptx::shared_address(&s_barrier));
}

// The largest score of a row over the always attended tokens, unscaled.
template <class C>
__device__ __forceinline__ float pseudo_max_of(const typename C::SharedStorage& s, int row) {
  float row_max = s.warp_max[row][0];
#pragma unroll
  for (int w = 1; w < C::kScanWarps + C::kAttendWarps; ++w) {
    row_max = fmaxf(row_max, s.warp_max[row][w]);
  }
  return row_max;
}

// The pages that a split takes: num_pages of them, num_splits apart.
struct SplitPages {
  int first_page, num_pages, num_splits;

  __device__ __forceinline__ SplitPages(const Params& p, const Item& item, const Spans& spans) {
    const int tile_shift = p.page_shift - 4;
    const int all = spans.num_pages(tile_shift);
    num_splits = item.num_splits;
    first_page = spans.first_page(tile_shift) + item.split;
    num_pages =
        item.split < all ? uniform(divide_by_splits(p, all - item.split - 1, num_splits)) + 1 : 0;
  }
  template <class C>
  __device__ __forceinline__ int num_rounds() const {
    return (num_pages + C::kScanWarps - 1) / C::kScanWarps;
  }
  // Index in the block table.
  template <class C>
  __device__ __forceinline__ int page(int round, int warp) const {
    return first_page + (round * C::kScanWarps + warp) * num_splits;
  }
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_ROUNDS_CUH_
