// The pseudo-max: the largest exact scores over the always attended tokens. Warps that attend take
// the tiles whose keys are quantised, warps that scan the others, which need no fold. Every CTA
// finds it for itself, of all row blocks: they share the kept tiles.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_PSEUDO_MAX_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_PSEUDO_MAX_CUH_

#include "cuda/kernels/ffd_decode/attend.cuh"
#include "cuda/kernels/ffd_decode/epilogue.cuh"

namespace longdecode::cuda::ffd {

// Part `index` of `parts` of the numbers [0, count).
struct Run {
  int begin, end;
  __device__ __forceinline__ Run(int count, int index, int parts)
      : begin(count * index / parts), end(count * (index + 1) / parts) {}
};

// A warp's part of the maxima, column `warp` of SharedStorage::warp_max.
template <class C>
class PseudoMax {
 public:
  __device__ __forceinline__ PseudoMax(const Params& params, typename C::SharedStorage& storage,
                                       const ItemContext<C>& context, int warp, int lane)
      : p_(params), s_(storage), context_(context), warp_(warp), lane_(lane) {}

  __device__ __forceinline__ int num_blocks() const {
    return C::kTwoLanesFold ? 1 : p_.num_row_blocks;
  }
  __device__ __forceinline__ void clear() {
    for (int i = lane_; i < 8 * num_blocks(); i += 32) s_.warp_max[i][warp_] = -INFINITY;
    __syncwarp();
  }
  // The largest scores of the always attended tokens of a tile.
  __device__ __forceinline__ void raise(int tile, int block, const Scores& scores) {
    float row_max[2] = {fmaxf(scores[0], scores[2]), fmaxf(scores[1], scores[3])};
    if (!context_.spans.is_always(tile)) {
      const int first_row = 8 * block;
      const int column = 2 * (lane_ & 3);
      row_max[0] = always_max(tile, first_row + C::row_of_column(column), scores[0], scores[2]);
      row_max[1] = always_max(tile, first_row + C::row_of_column(column + 1), scores[1], scores[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) row_max[i] = max_over_tokens(row_max[i]);
    if (2 * lane_ < C::kRows) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& top = s_.warp_max[8 * block + 2 * lane_ + i][warp_];
        top = fmaxf(top, row_max[i]);
      }
    }
  }
  __device__ __forceinline__ void publish() { arrive_lane(s_.pseudo_max_full); }

 private:
  // Of the scores of the lane's two tokens, `low` and `high`, those that the row always attends.
  __device__ __forceinline__ float always_max(int tile, int row, float low, float high) const {
    const int token = tile * kTileTokens + (lane_ >> 2);
    RowSpan span{0, 0, 0};
    if (row < context_.num_real_rows(p_)) {
      span = row_span(p_, context_.spans, token_of(p_, row));
    }
    return fmaxf(span.always(token) ? low : -INFINITY, span.always(token + 8) ? high : -INFINITY);
  }

  const Params& p_;
  typename C::SharedStorage& s_;
  const ItemContext<C>& context_;
  const int warp_, lane_;
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_PSEUDO_MAX_CUH_
