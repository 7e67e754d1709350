// Derived constants, shared memory and warp roles of an instance.
//
// rows <= 32 (256 threads):  warps 0-3 score, soften and accumulate; warp 4 loads; warps 5-7 only
//                            help to merge or to exchange weights.
// rows >= 48 (512 threads):  warps 0-3 score, with the query rows on M (S = Q K^T); warps 4-7
//                            accumulate dims 0-255, warps 8-11 dims 256-511 (O^T = V^T P^T); warp
//                            12 loads. Scoring tile t + 1 begins behind half of the products
//                            of tile t.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_CONFIG_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_CONFIG_CUH_

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/mla_decode/sm90/params.h"
#include "cuda/kernels/mla_decode/sm90/tile.h"
#include "cuda/ptx/memory.cuh"

namespace longdecode::cuda::mla_sm90 {

inline constexpr int kChunkDims = 64;                         // one 128-byte swizzle row
inline constexpr int kKeyChunks = kKeyDim / kChunkDims;       // 9
inline constexpr int kValueChunks = kValueDim / kChunkDims;   // 8
inline constexpr int kChunkBytes = kTileTokens * 128;         // 8192
inline constexpr int kStageBytes = kKeyChunks * kChunkBytes;  // 73728: one tile of K
inline constexpr int kStages = 2;                             // 144 KB in flight: 99.7% of HBM
inline constexpr int kSegmentSlots = 2;
// A CTA's first tile comes in nine boxes on this many barriers, so that its scores start when the
// chunks of the first are there.
inline constexpr int kFirstBoxes = 3;
// Sequences of at most so many tiles and as many CTAs exchange weights instead of partials
// (exchange.cuh).
inline constexpr int kExchangeSplits = kValueChunks;

template <Tile kTile>
struct Config {
  static constexpr int kRows = kTile.rows;
  static constexpr bool kIsF16 = kTile.is_f16;
  static constexpr bool kSplitRoles = kRows > kMostTransposedRows;
  // With 32 rows all longer sequences take 0.5 us more beside the code of the exchange.
  static constexpr bool kExchanges = kRows <= 16;
  static constexpr int kQueryRows = kSplitRoles ? 64 : kRows;  // room in s.q: M or N of the scores
  static constexpr int kRowBlocks8 = kRows / 8;   // 8-row column blocks of an accumulator
  static constexpr int kThreadRows = kRows / 4;   // query rows that a thread holds O^T of
  static constexpr int kAccumulator = kRows / 2;  // fp32 registers of a 64 x rows tile
  static constexpr int kThreadChunks = kSplitRoles ? kValueChunks / 2 : kValueChunks;
  // wgmma groups of a tile's products. While later groups run, the last tile's results are stored
  // or, with split roles, the next tile's scores begin.
  static constexpr int kValueGroups = kSplitRoles ? 2 : 4;
  static constexpr int kGroupChunks = kThreadChunks / kValueGroups;
  static constexpr int kQChunkBytes = kQueryRows * 128;
  static constexpr int kConsumerWarps = kSplitRoles ? 12 : 4;
  static constexpr int kProducerWarp = kConsumerWarps;
  static constexpr int kThreads = kSplitRoles ? 512 : 256;
  static constexpr int kSegmentReaders = kSplitRoles ? kConsumerWarps : kConsumerWarps + 3;
  // Split roles start with 128 registers a thread and hand them on; 512 a lane of the SM in all.
  static constexpr int kProducerRegisters = 64;
  static constexpr int kScoreRegisters = 128;
  static constexpr int kValueRegisters = 160;
  static_assert(kProducerRegisters + kScoreRegisters + 2 * kValueRegisters <= 512);
  // A partial: O^T in fragment order, 16 bytes [slices = 8 chunks * rows / 8 * 4 warps][32 lanes
  // 4 g + c], see pack_partial; then 16 bytes [rows] of {max, sum, 0, tag}.
  static constexpr int kSlices = kRows * 4;
  static constexpr int kPartialUnits = kSlices * 32 + kRows;  // of 16 bytes
  // CTAs with at most this many tiles end nearly at the same time: the merge loads all partials at
  // once. After more tiles it polls for one first, so as not to disturb CTAs that still compute.
  static constexpr uint32_t kTilesInStep = kSplitRoles ? 16 : 8;
  static constexpr int kMergeLoads = kSplitRoles ? 4 : 8;  // splits that a warp has in flight

  struct SharedStorage {
    alignas(1024) uint8_t ring[kStages][kStageBytes];  // [chunk][64 tokens][128 B], 128 B swizzle
    uint8_t q[kKeyChunks * kQChunkBytes];              // [chunk][rows][128 B], 128 B swizzle
    uint8_t p[kRows * 128];                            // P: [rows][64 tokens], 128 B swizzle
    float warp_rows[4][kSplitRoles ? 4 : kRows];       // a value per row of each scoring warp
    // At the end of a segment: (max, sum) and 1 / sum.
    alignas(16) float2 row_stats[kRows];
    float row_inverse[kRows];
    float row_factor[kRows];            // rescaling of O^T before the next tile; split roles only
    alignas(16) float must_rescale[4];  // 0 or 1 per scoring warp; split roles only
    int4 segments[kSegmentSlots][2];
    uint32_t tag;  // of the partials of this run; there once the first segment is
    // {sequence, first worker, number of splits, split} of what the CTA must store as partials, at
    // most two; there once the producer has published kNoMoreSegments.
    alignas(16) int4 splits[2];
    uint32_t num_splits;
    uint32_t num_tiles;  // that the CTA has attended; there with num_splits
    // Of the sequence if it exchanges weights, else 0; there with num_splits.
    int32_t exchanged_kv_len;
    uint64_t k_full[kStages], k_empty[kStages];
    uint64_t first_full[kFirstBoxes - 1];  // later parts of a CTA's first tile; rows <= 32
    uint64_t segment_full[kSegmentSlots], segment_empty[kSegmentSlots];
    // Split roles only: P and the factors, of which p_half says that half of the products with P
    // are done; row_inverse.
    uint64_t p_full, p_half, p_empty, rows_full, rows_empty;
  };
  static_assert(sizeof(SharedStorage) <= 232448, "shared memory of sm_90");
};

// Shared-memory address of a member of SharedStorage.
#define LD_SHARED(Config, base, member) \
  ((base) + static_cast<uint32_t>(offsetof(typename Config::SharedStorage, member)))

// Named barriers; 0 is __syncthreads.
inline constexpr int kScoreBarrier = 1;  // the 128 scoring threads
inline constexpr int kMergeBarrier = 2;  // the threads of the kMergeWarps
// Exchange of weights, all 256 threads: P is sent and q no longer needed; the second half of P is
// received; the factors of the tiles' products are there.
inline constexpr int kSentBarrier = 3, kReceivedBarrier = 4, kWeighedBarrier = 5;
inline constexpr int kMergeWarps = 8;  // split roles: the accumulating warps, else all

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_CONFIG_CUH_
