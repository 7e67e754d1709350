// Which worker attends which tiles, decided on the device from kv_lens. All functions are
// warp-collective: every lane gets the same answer.
//
// Strided: worker w serves split w % S of sequence w / S, tiles split, split + n, ... Its first
// page id can be fetched before the lengths are known. Used when it is balanced. A sequence of two
// to kExchangeSplits tiles has kExchangeSplits splits of one tile or none if S allows (up to 16
// rows).
// Ranges: equal ranges of the list of all tiles (TileRanges). A sequence of length 0 counts as one
// tile, so that somebody writes its output.
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

__device__ __forceinline__ int num_tiles_of(int kv_len) {
  return max(1, (kv_len + kTileTokens - 1) / kTileTokens);
}

// Whether the CTAs of the sequence exchange weights (exchange.cuh): all of them know.
template <class C>
__device__ __forceinline__ bool exchanges(const Segment& segment) {
  return C::kExchanges && segment.num_splits == kExchangeSplits &&
         segment.tile_stride == kExchangeSplits && num_tiles_of(segment.kv_len) <= kExchangeSplits;
}

// The fewest splits that keep the longest one as short as max_splits would make it.
__device__ __forceinline__ int strided_splits(int num_tiles, int per_split) {
  return per_split == 1 ? num_tiles : (num_tiles + per_split - 1) / per_split;
}

// Tiles of a sequence, for TileRanges. Keeps the length that the lane was asked for last.
class SequenceTiles {
 public:
  __device__ __forceinline__ explicit SequenceTiles(const Params& params)
      : g_kv_lens_(params.g_kv_lens) {}

  // The length of sequence `lane`, for the next call.
  __device__ __forceinline__ void prefetch(int batch) {
    const int lane = threadIdx.x & 31;
    kv_len_ = lane < batch ? ptx::load_global_i32(g_kv_lens_ + lane) : 0;
    is_prefetched_ = true;
  }
  __device__ __forceinline__ int operator()(int sequence) {
    if (!is_prefetched_) kv_len_ = ptx::load_global_i32(g_kv_lens_ + sequence);
    is_prefetched_ = false;
    return num_tiles_of(kv_len_);
  }
  __device__ __forceinline__ int kv_len() const { return kv_len_; }

 private:
  const int32_t* g_kv_lens_;
  int kv_len_ = 0;
  bool is_prefetched_ = false;
};

class Schedule {
 public:
  __device__ __forceinline__ Schedule(const Params& params, bool may_exchange)
      : ranges_(SequenceTiles(params), params.batch, 1), may_exchange_(may_exchange) {}

  // Fetches the lengths of a small batch; what needs them comes with init.
  __device__ __forceinline__ void prefetch(const Params& params, int worker) {
    worker_ = worker;
    strided_ = params.fixed_splits;
    if (params.batch <= kSmallBatch && !params.fixed_splits) {
      ranges_.tiles_of().prefetch(params.batch);
    }
  }

  // s_block_sums: TileRanges::block_sum; batch > kSmallBatch only.
  __device__ __forceinline__ void init(const Params& params, const int* s_block_sums) {
    if (params.fixed_splits) return;
    if (params.batch <= kSmallBatch) {
      const bool exists = (threadIdx.x & 31) < params.batch;
      const int tiles = exists ? num_tiles_of(ranges_.tiles_of().kv_len()) : 0;
      const int total = __reduce_add_sync(kFullWarp, tiles);
      const int longest = __reduce_max_sync(kFullWarp, tiles);
      strided_ =
          params.num_splits.value > 0 && divide_up(longest, params.num_splits) <=
                                             divide_up(total, params.num_workers) * 17 / 16 + 1;
      if (strided_) return;
    }
    ranges_.init(params.num_workers, worker_, s_block_sums);
  }

  __device__ __forceinline__ bool strided() const { return strided_; }
  __device__ __forceinline__ const TileRanges<SequenceTiles>& ranges() const { return ranges_; }

  // The worker's next segment; false when there is none.
  __device__ __forceinline__ bool next(const Params& params, Segment& segment) {
    if (strided_) return next_strided(params, segment);
    TileSegment range;
    if (!ranges_.next(range)) return false;
    segment.sequence = range.sequence;
    segment.kv_len =
        __shfl_sync(kFullWarp, ranges_.tiles_of().kv_len(), range.sequence - ranges_.window());
    segment.first_tile = range.first_tile;
    segment.num_tiles = segment.kv_len > 0 ? range.num_tiles : 0;
    segment.tile_stride = 1;
    segment.num_splits = range.num_splits;
    segment.split = range.split;
    segment.first_worker = range.first_worker;
    return true;
  }

 private:
  __device__ __forceinline__ int strided_kv_len(const Params& params, int sequence) {
    return params.fixed_splits ? ptx::load_global_i32(params.g_kv_lens + sequence)
                               : __shfl_sync(kFullWarp, ranges_.tiles_of().kv_len(), sequence);
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
    const bool exchange = may_exchange_ && params.num_splits.value >= kExchangeSplits &&
                          tiles > 1 && tiles <= kExchangeSplits;
    const int num_splits = exchange ? kExchangeSplits : strided_splits(tiles, per_split);
    worker_ = -1;
    if (split >= num_splits) return false;
    segment.sequence = sequence;
    segment.kv_len = kv_len;
    segment.first_tile = split;
    // All splits have per_split tiles or one less; where weights are exchanged, one or none.
    segment.num_tiles =
        kv_len > 0 ? per_split - (split + (per_split - 1) * num_splits >= tiles ? 1 : 0) : 0;
    segment.tile_stride = num_splits;
    segment.num_splits = num_splits;
    segment.split = split;
    segment.first_worker = first_worker;
    return true;
  }

  TileRanges<SequenceTiles> ranges_;
  int worker_ = -1;
  bool strided_ = false;
  bool may_exchange_;
};

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_SCHEDULE_CUH_
