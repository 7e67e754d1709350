// Which worker attends which tiles, decided on the device from kv_lens. All functions are
// warp-collective: every lane gets the same answer.
//
// Strided: worker w serves split w % S of sequence w / S, tiles split, split + n, ... Its first
// page id can be fetched before the lengths are known. Used when it is balanced.
// Ranges: the tiles of all sequences form one list, worker w gets the w-th of num_workers
// equal ranges. A sequence of length 0 counts as one tile, so that somebody writes its output.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SCHEDULE_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SCHEDULE_CUH_

#include "cuda/device/tile_ranges.cuh"
#include "cuda/kernels/mla_decode/sm90/config.cuh"

namespace longdecode::cuda::mla_sm90 {

// Tiles first_tile, first_tile + tile_stride, ... of a sequence: one split of it.
struct Segment {
  int32_t sequence, kv_len, first_tile, num_tiles;
  int32_t tile_stride, num_splits, split, first_worker;
};

struct Splits {
  int32_t first_worker, num_splits;  // split k belongs to worker first_worker + k
};

__device__ __forceinline__ int num_tiles_of(int kv_len) {
  return max(1, (kv_len + kTileTokens - 1) / kTileTokens);
}

// The fewest splits that keep the longest one as short as max_splits would make it.
__device__ __forceinline__ int strided_splits(int num_tiles, int per_split) {
  return per_split == 1 ? num_tiles : (num_tiles + per_split - 1) / per_split;
}

class Schedule {
 public:
  // Fetches the lengths of a small batch; what needs them comes with init.
  __device__ __forceinline__ void prefetch(const Params& params, int worker) {
    worker_ = worker;
    lane_ = threadIdx.x & 31;
    strided_ = params.fixed_splits;
    if (params.batch <= kSmallBatch && !params.fixed_splits) load_lengths(params, 0);
  }

  // s_block_sums: tiles per block of block_sequences(batch) sequences; batch > kSmallBatch only.
  __device__ __forceinline__ void init(const Params& params, const int* s_block_sums) {
    if (params.fixed_splits) return;
    if (params.batch <= kSmallBatch) {
      const int tiles = lane_ < params.batch ? num_tiles_of(kv_len_) : 0;
      const int total = __reduce_add_sync(kFullWarp, tiles);
      const int longest = __reduce_max_sync(kFullWarp, tiles);
      strided_ =
          params.num_splits.value > 0 && divide_up(longest, params.num_splits) <=
                                             divide_up(total, params.num_workers) * 17 / 16 + 1;
      if (strided_) return;
      sum_window(params, 0, 0);
      set_ranges(params, total);
    } else {
      find_first_window(params, s_block_sums);
    }
  }

  __device__ __forceinline__ bool strided() const { return strided_; }

  // The worker's next segment; false when there is none.
  __device__ __forceinline__ bool next(const Params& params, Segment& segment) {
    if (strided_) return next_strided(params, segment);
    if (position_ >= end_) return false;
    int index = __popc(__ballot_sync(kFullWarp, inclusive_ <= position_));
    while (index == 32) {
      const int tiles_before = __shfl_sync(kFullWarp, inclusive_, 31);
      load_lengths(params, window_ + 32);
      sum_window(params, window_ + 32, tiles_before);
      index = __popc(__ballot_sync(kFullWarp, inclusive_ <= position_));
    }
    const Splits splits = range_splits(index);
    const int sequence_end = __shfl_sync(kFullWarp, inclusive_, index);
    const int segment_end = min(end_, sequence_end);
    segment.sequence = window_ + index;
    segment.kv_len = __shfl_sync(kFullWarp, kv_len_, index);
    segment.first_tile = position_ - (sequence_end - __shfl_sync(kFullWarp, tiles_, index));
    segment.num_tiles = segment.kv_len > 0 ? segment_end - position_ : 0;
    segment.tile_stride = 1;
    segment.num_splits = splits.num_splits;
    segment.split = worker_ - splits.first_worker;
    segment.first_worker = splits.first_worker;
    position_ = segment_end;
    return true;
  }

  // Sequences per block sum: at most kScheduleBlocks blocks.
  static __device__ __forceinline__ int block_sequences(int batch) {
    return 32 * ((batch + 32 * kScheduleBlocks - 1) / (32 * kScheduleBlocks));
  }

  // The block's tiles, by one warp.
  static __device__ __forceinline__ int block_sum(const Params& params, int block) {
    const int size = block_sequences(params.batch);
    const int end = min(params.batch, (block + 1) * size);
    int sum = 0;
#pragma unroll 8
    for (int i = block * size + (threadIdx.x & 31); i < end; i += 32) {
      sum += num_tiles_of(ptx::load_global_i32(params.g_kv_lens + i));
    }
    return __reduce_add_sync(kFullWarp, sum);
  }

 private:
  __device__ __forceinline__ void load_lengths(const Params& params, int window) {
    const int sequence = window + lane_;
    kv_len_ = sequence < params.batch ? ptx::load_global_i32(params.g_kv_lens + sequence) : 0;
  }

  __device__ __forceinline__ void sum_window(const Params& params, int window, int tiles_before) {
    window_ = window;
    tiles_ = window + lane_ < params.batch ? num_tiles_of(kv_len_) : 0;
    inclusive_ = warp_inclusive_sum(tiles_, lane_) + tiles_before;
  }

  // The first total % workers workers get one tile more.
  __device__ __forceinline__ void set_ranges(const Params& params, int total) {
    const int all_workers = static_cast<int>(params.num_workers.value);
    const int workers = min(all_workers, total);
    per_worker_ = workers == all_workers ? divide(total, params.num_workers) : 1;
    remainder_ = total - per_worker_ * workers;
    const int w = min(worker_, workers);
    position_ = w * per_worker_ + min(w, remainder_);
    end_ = worker_ >= workers ? position_ : position_ + per_worker_ + (w < remainder_ ? 1 : 0);
  }

  __device__ __forceinline__ int owner(int tile) const {
    const int boundary = remainder_ * (per_worker_ + 1);
    return tile < boundary ? tile / (per_worker_ + 1)
                           : remainder_ + (tile - boundary) / per_worker_;
  }

  __device__ __forceinline__ Splits range_splits(int index) const {
    const int end = __shfl_sync(kFullWarp, inclusive_, index);
    const int first_worker = owner(end - __shfl_sync(kFullWarp, tiles_, index));
    return {first_worker, owner(end - 1) - first_worker + 1};
  }

  __device__ __forceinline__ void find_first_window(const Params& params, const int* s_block_sums) {
    constexpr int kPerLane = kScheduleBlocks / 32;
    const int size = block_sequences(params.batch);
    const int num_blocks = (params.batch + size - 1) / size;
    int sums[kPerLane];
    int own = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int block = lane_ * kPerLane + i;
      sums[i] = block < num_blocks ? s_block_sums[block] : 0;
      own += sums[i];
    }
    const int inclusive = warp_inclusive_sum(own, lane_);
    set_ranges(params, __shfl_sync(kFullWarp, inclusive, 31));
    const int lane = min(31, __popc(__ballot_sync(kFullWarp, inclusive <= position_)));
    int before = inclusive - own;
    int block = lane_ * kPerLane;
#pragma unroll
    for (int i = 0; i < kPerLane - 1; ++i) {
      if (before + sums[i] <= position_ && block == lane_ * kPerLane + i) {
        before += sums[i];
        ++block;
      }
    }
    const int window = __shfl_sync(kFullWarp, block, lane) * size;
    load_lengths(params, window);
    sum_window(params, window, __shfl_sync(kFullWarp, before, lane));
  }

  __device__ __forceinline__ int strided_kv_len(const Params& params, int sequence) const {
    return params.fixed_splits ? ptx::load_global_i32(params.g_kv_lens + sequence)
                               : __shfl_sync(kFullWarp, kv_len_, sequence);
  }

  __device__ __forceinline__ bool next_strided(const Params& params, Segment& segment) {
    if (worker_ < 0) return false;
    const int sequence = divide(worker_, params.num_splits);
    if (sequence >= params.batch) return false;
    const int first_worker = sequence * static_cast<int>(params.num_splits.value);
    const int split = worker_ - first_worker;
    const int kv_len = strided_kv_len(params, sequence);
    const int tiles = num_tiles_of(kv_len);
    const int per_split = divide_up(tiles, params.num_splits);
    const int num_splits = strided_splits(tiles, per_split);
    worker_ = -1;
    if (split >= num_splits) return false;
    segment.sequence = sequence;
    segment.kv_len = kv_len;
    segment.first_tile = split;
    // All splits have per_split tiles or one less.
    segment.num_tiles =
        kv_len > 0 ? per_split - (split + (per_split - 1) * num_splits >= tiles ? 1 : 0) : 0;
    segment.tile_stride = num_splits;
    segment.num_splits = num_splits;
    segment.split = split;
    segment.first_worker = first_worker;
    return true;
  }

  int lane_, worker_;
  bool strided_;
  int position_, end_;  // of the tile list, still to be handed out
  int per_worker_, remainder_;
  int window_;                      // first of the 32 sequences that the lanes hold
  int kv_len_, tiles_, inclusive_;  // of the lane's sequence; inclusive prefix sum of tiles
};

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SCHEDULE_CUH_
