// How a warp streams its part of W through its own ring in shared memory.
//
// A chunk is 16 rows x 128 columns, row-major, 256 bytes a row; the 16-byte pieces of odd rows are
// exchanged between the halves of 128 bytes, so that the 8 lanes that read together (2 rows x 4
// pieces) touch all banks once.
#ifndef LONGDECODE_CUDA_KERNELS_MATVEC_RING_CUH_
#define LONGDECODE_CUDA_KERNELS_MATVEC_RING_CUH_

#include <cstdint>

#include "cuda/kernels/matvec/params.h"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/tma.cuh"

namespace longdecode::cuda::matvec {

// The chunks of a warp in the order of its work: of every tile of the CTA, chunks warp, warp + 8,
// ...
template <int kStages>
class Ring {
 public:
  __device__ Ring(const Params& p, uint32_t s_ring, int warp, int lane)
      : s_chunks_(s_ring + warp * kStages * kChunkBytes),
        num_chunks_((p.num_cols + kChunkCols - 1) / kChunkCols),
        num_tiles_((p.num_rows + kTileRows - 1) / kTileRows),
        warp_(warp),
        tile_(warp < num_chunks_ ? static_cast<int>(blockIdx.x) : num_tiles_),
        chunk_(warp) {
    const int odd = lane >> 4, piece = lane & 15;
    s_offset_ = odd * 256 + 16 * (piece ^ (4 * odd));
  }

  __device__ int num_chunks() const { return num_chunks_; }
  __device__ int num_tiles() const { return num_tiles_; }
  __device__ bool exhausted() const { return tile_ >= num_tiles_; }

  // Starts to load the next chunk, if there is one; a group in any case.
  __device__ __forceinline__ void fetch(const Params& p, int lane) {
    if (!exhausted()) {
      const int row = tile_ * kTileRows + (lane >> 4);
      const int column = chunk_ * kChunkCols + 8 * (lane & 15);
      const bool has_column = column < p.num_cols;
      const uint16_t* g_from = p.g_weight + int64_t{row} * p.num_cols + column;
      const int64_t two_rows = int64_t{2} * p.num_cols;
      const uint32_t s_to = s_chunks_ + head_ * kChunkBytes + s_offset_;
#pragma unroll
      for (int i = 0; i < kTileRows / 2; ++i) {
        const bool valid = has_column && row + 2 * i < p.num_rows;
        ptx::copy_async_16(s_to + 512 * i, valid ? g_from + i * two_rows : p.g_weight,
                           valid ? 16 : 0, ptx::kEvictFirst);
      }
      head_ = head_ + 1 == kStages ? 0 : head_ + 1;
      chunk_ += kWarps;
      if (chunk_ >= num_chunks_) {
        chunk_ = warp_;
        tile_ += static_cast<int>(gridDim.x);
      }
    }
    ptx::copy_async_commit();
  }

  // The address of the oldest chunk, which has arrived, and for all lanes to see.
  __device__ __forceinline__ uint32_t wait() {
    ptx::copy_async_wait<kStages - 1>();
    __syncwarp();
    return s_chunks_ + tail_ * kChunkBytes;
  }
  // All lanes have read it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    tail_ = tail_ + 1 == kStages ? 0 : tail_ + 1;
  }

 private:
  uint32_t s_chunks_, s_offset_;
  int num_chunks_, num_tiles_, warp_;
  int tile_, chunk_;  // the next one to fetch
  int head_ = 0, tail_ = 0;
};

}  // namespace longdecode::cuda::matvec

#endif  // LONGDECODE_CUDA_KERNELS_MATVEC_RING_CUH_
