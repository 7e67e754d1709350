// What all consumer warps do with a segment: take it from the producer, and fetch its query rows.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SEGMENTS_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SEGMENTS_CUH_

#include "cuda/kernels/mla_decode/sm90/load.cuh"

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

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SEGMENTS_CUH_
