// Which tiles a CTA attends: equal ranges of all tiles, or the fixed splits of the batch-invariant
// mode.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SCHEDULE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SCHEDULE_CUH_

#include "cuda/kernels/gqa_decode/config.cuh"

namespace longdecode::cuda::gqa {

// Split `split` of a pair with `tiles` tiles: all splits have ceil(tiles / num_splits) tiles, the
// last one the rest; as few splits as that needs. False: the split does not exist.
__device__ __forceinline__ bool fixed_split(const Params& params, int tiles, int split,
                                            TileSegment& segment) {
  const int per_split = divide_up(tiles, params.num_splits);
  segment.num_splits = (tiles + per_split - 1) / per_split;
  segment.split = split;
  segment.first_tile = split * per_split;
  segment.num_tiles = min(per_split, tiles - segment.first_tile);
  return split < segment.num_splits;
}

template <class C>
class Schedule {
 public:
  using Tiles = SequenceTiles<C::kTileTokens>;

  __device__ __forceinline__ explicit Schedule(const Params& params)
      : ranges_(Tiles{params}, params.batch, params.num_kv_heads) {}

  static __device__ __forceinline__ bool needs_block_sums(const Params& params) {
    return params.batch > kWindowSequences && !params.fixed_splits;
  }

  __device__ __forceinline__ void init(const Params& params, int worker, const int* s_block_sums) {
    fixed_worker_ = worker;
    if (!params.fixed_splits) ranges_.init(params.num_workers, worker, s_block_sums);
  }

  // The next segment; its tiles are counted from the first that the sequence has to attend.
  __device__ __forceinline__ bool next(const Params& params, TileSegment& segment) {
    if (!params.fixed_splits) return ranges_.next(segment);
    if (fixed_worker_ < 0) return false;
    const int pair = divide(fixed_worker_, params.num_splits);
    segment.first_worker = pair * static_cast<int>(params.num_splits.value);
    segment.sequence = pair / params.num_kv_heads;
    segment.head = pair - segment.sequence * params.num_kv_heads;
    const int split = fixed_worker_ - segment.first_worker;
    fixed_worker_ = -1;
    return fixed_split(params, Tiles{params}(segment.sequence), split, segment);
  }

  // The splits of a pair; where the merge goes by pairs.
  __device__ __forceinline__ PairSplits splits_of(const Params& params, int sequence,
                                                  int head) const {
    if (!params.fixed_splits) return ranges_.splits_of(sequence, head);
    TileSegment segment;
    fixed_split(params, Tiles{params}(sequence), 0, segment);
    const int pair = sequence * params.num_kv_heads + head;
    return {pair * static_cast<int>(params.num_splits.value), segment.num_splits};
  }

  __device__ __forceinline__ const TileRanges<Tiles>& ranges() const { return ranges_; }

 private:
  TileRanges<Tiles> ranges_;
  int fixed_worker_ = -1;
};

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SCHEDULE_CUH_
