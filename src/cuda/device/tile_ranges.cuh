// Dealing the tiles of a batch to workers, from lengths in device memory.
//
// Sequence s has tiles_of(s) >= 1 tiles for each of num_heads heads. The list of all tiles goes by
// sequence, head, tile; worker w gets the w-th of num_workers equal ranges. A pair (sequence, head)
// that lies in several ranges is split. Everything here is done by a whole warp, whose lanes hold a
// window of 32 sequences.
#ifndef LONGDECODE_CUDA_DEVICE_TILE_RANGES_CUH_
#define LONGDECODE_CUDA_DEVICE_TILE_RANGES_CUH_

#include "cuda/device/divisor.h"
#include "cuda/device/warp.cuh"

namespace longdecode::cuda {

// Batches up to this many sequences are dealt from one window.
inline constexpr int kWindowSequences = 32;
// Larger ones need the sums of this many blocks of sequences (fewer may exist) in shared memory.
inline constexpr int kSequenceBlocks = 256;

// Tiles first_tile ... of a pair: one split of it.
struct TileSegment {
  int32_t sequence, head, first_tile, num_tiles;
  int32_t num_splits, split;
  int32_t first_worker;  // split k belongs to worker first_worker + k
};

struct PairSplits {
  int32_t first_worker, num_splits;
};

// Slot of a partial result. A worker writes at most one first split (in its last segment) and at
// most one later split (in its first segment), so 2 * num_workers slots are enough.
__device__ __forceinline__ int partial_slot(int first_worker, int split) {
  return 2 * (first_worker + split) + (split == 0 ? 1 : 0);
}

// `total` tiles dealt out: the first `remainder` workers get per_worker + 1, the others per_worker.
struct EqualRanges {
  int per_worker, remainder;

  __device__ __forceinline__ EqualRanges() : per_worker(0), remainder(0) {}
  __device__ __forceinline__ EqualRanges(int total, const Divisor& num_workers)
      : per_worker(divide(total, num_workers)),
        remainder(total - per_worker * static_cast<int>(num_workers.value)) {}
  __device__ __forceinline__ int begin(int worker) const {
    return worker * per_worker + min(worker, remainder);
  }
  __device__ __forceinline__ int size(int worker) const {
    return per_worker + (worker < remainder ? 1 : 0);
  }
  __device__ __forceinline__ int owner(int tile) const {
    const int boundary = remainder * (per_worker + 1);
    return tile < boundary ? tile / (per_worker + 1) : remainder + (tile - boundary) / per_worker;
  }
};

template <class TilesOf>
class TileRanges {
 public:
  __device__ __forceinline__ TileRanges(const TilesOf& tiles_of, int batch, int num_heads)
      : tiles_of_(tiles_of), batch_(batch), num_heads_(num_heads) {}

  // s_block_sums: of block_sum, for batches beyond kWindowSequences only.
  __device__ __forceinline__ void init(const Divisor& num_workers, int worker,
                                       const int* s_block_sums) {
    if (batch_ <= kWindowSequences) {
      load_window(0, 0);
      ranges_ = EqualRanges(__shfl_sync(kFullWarp, inclusive_, 31), num_workers);
      set_range(worker);
    } else {
      init_from_blocks(num_workers, worker, s_block_sums);
    }
  }

  // The worker's next segment; false when there is none.
  __device__ __forceinline__ bool next(TileSegment& segment) {
    if (position_ >= end_) return false;
    int index = __popc(__ballot_sync(kFullWarp, inclusive_ <= position_));
    while (index == 32) {
      load_window(window_ + kWindowSequences, __shfl_sync(kFullWarp, inclusive_, 31));
      index = __popc(__ballot_sync(kFullWarp, inclusive_ <= position_));
    }
    const int tiles = __shfl_sync(kFullWarp, tiles_, index);
    const int sequence_begin = __shfl_sync(kFullWarp, inclusive_, index) - tiles * num_heads_;
    segment.sequence = window_ + index;
    segment.head = (position_ - sequence_begin) / tiles;
    const int pair_begin = sequence_begin + segment.head * tiles;
    const int segment_end = min(end_, pair_begin + tiles);
    segment.first_tile = position_ - pair_begin;
    segment.num_tiles = segment_end - position_;
    segment.first_worker = ranges_.owner(pair_begin);
    segment.num_splits = ranges_.owner(pair_begin + tiles - 1) - segment.first_worker + 1;
    segment.split = worker_ - segment.first_worker;
    position_ = segment_end;
    return true;
  }

  // After init, for batches up to kWindowSequences only.
  __device__ __forceinline__ PairSplits splits_of(int sequence, int head) const {
    const int tiles = __shfl_sync(kFullWarp, tiles_, sequence);
    const int begin = __shfl_sync(kFullWarp, inclusive_, sequence) - tiles * (num_heads_ - head);
    const int first_worker = ranges_.owner(begin);
    return {first_worker, ranges_.owner(begin + tiles - 1) - first_worker + 1};
  }

  static __device__ __forceinline__ int block_sequences(int batch) {
    constexpr int kStep = kWindowSequences * kSequenceBlocks;
    return kWindowSequences * ((batch + kStep - 1) / kStep);
  }

  // Tiles of all sequences of a block, by one warp.
  __device__ __forceinline__ int block_sum(int block) const {
    const int size = block_sequences(batch_);
    const int end = min(batch_, (block + 1) * size);
    TilesOf tiles_of = tiles_of_;
    int sum = 0;
#pragma unroll 8
    for (int i = block * size + (threadIdx.x & 31); i < end; i += 32) sum += tiles_of(i);
    return __reduce_add_sync(kFullWarp, sum) * num_heads_;
  }

  // What it was asked for last, by this lane, is sequence window() + lane.
  __device__ __forceinline__ TilesOf& tiles_of() { return tiles_of_; }
  __device__ __forceinline__ int window() const { return window_; }

 private:
  __device__ __forceinline__ void load_window(int first, int tiles_before) {
    const int sequence = first + (threadIdx.x & 31);
    window_ = first;
    tiles_ = sequence < batch_ ? tiles_of_(sequence) : 0;
    inclusive_ = warp_inclusive_sum(tiles_ * num_heads_, threadIdx.x & 31) + tiles_before;
  }

  __device__ __forceinline__ void set_range(int worker) {
    worker_ = worker;
    position_ = ranges_.begin(worker);
    end_ = position_ + ranges_.size(worker);
  }

  __device__ __forceinline__ void init_from_blocks(const Divisor& num_workers, int worker,
                                                   const int* s_block_sums) {
    constexpr int kPerLane = kSequenceBlocks / 32;
    const int lane = threadIdx.x & 31;
    const int size = block_sequences(batch_);
    const int num_blocks = (batch_ + size - 1) / size;
    int own = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int block = lane * kPerLane + i;
      own += block < num_blocks ? s_block_sums[block] : 0;
    }
    const int inclusive = warp_inclusive_sum(own, lane);
    ranges_ = EqualRanges(__shfl_sync(kFullWarp, inclusive, 31), num_workers);
    set_range(worker);
    if (position_ >= end_) return;
    const int holder = __popc(__ballot_sync(kFullWarp, inclusive <= position_));
    int before = __shfl_sync(kFullWarp, inclusive - own, holder);
    int block = holder * kPerLane;
    while (before + s_block_sums[block] <= position_) before += s_block_sums[block++];
    load_window(block * size, before);
  }

  TilesOf tiles_of_;
  int batch_, num_heads_;
  EqualRanges ranges_;
  int worker_ = 0, position_ = 0, end_ = 0;  // of the list of all tiles, still to be handed out
  int window_ = 0;                           // first of the 32 sequences that the lanes hold
  int tiles_ = 0, inclusive_ = 0;            // of the lane's sequence: per head; prefix sum
};

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_TILE_RANGES_CUH_
