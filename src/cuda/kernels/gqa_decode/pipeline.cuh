// How the producer warp and the computing warps hand tiles and segments to each other.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_PIPELINE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_PIPELINE_CUH_

#include "cuda/kernels/gqa_decode/config.cuh"
#include "cuda/ptx/barrier.cuh"

namespace longdecode::cuda::gqa {

// A work item whose sequence is kNoMoreWork ends the computing warps.
inline constexpr int32_t kNoMoreWork = -1;

// The CTA's part of the grid.
struct Place {
  int worker, row_block;
  __device__ __forceinline__ explicit Place(const Params& params) {
    const int block = ptx::block_index();
    worker = divide(block, params.num_row_blocks);
    row_block = block - worker * static_cast<int>(params.num_row_blocks.value);
  }
};

// A segment as the computing warps need it.
struct WorkItem {
  int32_t sequence, head, kv_len;
  int32_t first_token;            // the first that some query token sees
  int32_t first_tile, num_tiles;  // counted from token 0 of the sequence; 0 tiles: nothing to see
  int32_t num_splits;
  int32_t slot;  // of the partial result
};

__device__ __forceinline__ int query_len_of(const Params& params, int sequence) {
  return params.g_query_lens == nullptr
             ? params.query_len
             : min(params.query_len, ptx::load_global_i32(params.g_query_lens + sequence));
}

template <class C>
__device__ __forceinline__ WorkItem make_work_item(const Params& params,
                                                   const TileSegment& segment) {
  WorkItem item;
  item.sequence = segment.sequence;
  item.head = segment.head;
  item.kv_len = ptx::load_global_i32(params.g_kv_lens + segment.sequence);
  const int query_len = query_len_of(params, segment.sequence);
  item.first_token =
      params.sliding_window == 0 ? 0 : max(0, item.kv_len - query_len - params.sliding_window + 1);
  item.first_tile = SequenceTiles<C::kTileTokens>::first(params, item.kv_len) + segment.first_tile;
  item.num_tiles = item.kv_len > 0 && query_len > 0 ? segment.num_tiles : 0;
  item.num_splits = segment.num_splits;
  item.slot = partial_slot(segment.first_worker, segment.split);
  return item;
}

// Position in a ring and the parity of the phase that fills it next.
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int num_slots) {
    if (++slot == num_slots) slot = 0, parity ^= 1;
  }
};

// By the producer warp.
template <class C>
__device__ __forceinline__ void publish(uint32_t s_base, const RingPosition& position,
                                        const WorkItem& item) {
  if ((threadIdx.x & 31) != 0) return;
  ptx::mbarrier_wait(LD_SHARED(C, s_base, segment_empty) + 8 * position.slot, position.parity ^ 1);
  const uint32_t s_item = LD_SHARED(C, s_base, segments) + 32 * position.slot;
  ptx::store_shared(s_item, make_int4(item.sequence, item.head, item.kv_len, item.first_token));
  ptx::store_shared(s_item + 16,
                    make_int4(item.first_tile, item.num_tiles, item.num_splits, item.slot));
  ptx::mbarrier_arrive(LD_SHARED(C, s_base, segment_full) + 8 * position.slot);
}

// By every computing warp; the slot is free for the producer once all of them have read it.
template <class C>
__device__ __forceinline__ WorkItem next_item(uint32_t s_base, RingPosition& position) {
  ptx::mbarrier_wait(LD_SHARED(C, s_base, segment_full) + 8 * position.slot, position.parity);
  const uint32_t s_item = LD_SHARED(C, s_base, segments) + 32 * position.slot;
  const int4 a = ptx::load_shared_int4(s_item), b = ptx::load_shared_int4(s_item + 16);
  __syncwarp();
  if ((threadIdx.x & 31) == 0) {
    ptx::mbarrier_arrive(LD_SHARED(C, s_base, segment_empty) + 8 * position.slot);
  }
  position.advance(kSegmentSlots);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_PIPELINE_CUH_
