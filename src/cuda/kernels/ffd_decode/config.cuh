// Derived constants and shared memory of an instance.
//
// A CTA has warps that scan, each pages of its own from a ring of its own, and warps that attend
// the tiles that were hit.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_CONFIG_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_CONFIG_CUH_

#include <cstdint>

#include "cuda/device/warp.cuh"
#include "cuda/kernels/ffd_decode/params.h"
#include "cuda/kernels/ffd_decode/tile.h"
#include "cuda/ptx/memory.cuh"

namespace longdecode::cuda::ffd {

inline constexpr int kTileTokens = 16;
inline constexpr int kMaxQueryRows = 128;  // 16 heads x 8 query tokens
inline constexpr int kRounds = 16;         // that the scan may be ahead of the attend warps
static_assert(kRounds > kMaxStages);

// A value that is the same in all lanes, in a uniform register: what is computed from it and
// branches on it costs the lanes nothing, and the compiler knows that the warp stays together.
__device__ __forceinline__ int uniform(int value) { return __reduce_max_sync(kFullWarp, value); }

// Shared memory by its 32-bit address. Not volatile: loads between two barriers may be reordered.
__device__ __forceinline__ float2 shared_float2(uint32_t s_address) {
  return *static_cast<const float2*>(__cvta_shared_to_generic(s_address));
}

template <Tile kTile>
struct Config {
  static constexpr int kDim = kTile.head_dim;
  static constexpr int kRows = kTile.rows;
  static constexpr bool kIsF16 = kTile.is_f16;
  static constexpr bool kIsSm80 = kTile.is_sm80;
  static constexpr bool kTwoLanesFold = kRows == 4;
  static constexpr int kMaxRows = kTwoLanesFold ? 8 : kMaxQueryRows;
  static constexpr int kScanWarps = num_scan_warps(kTile), kAttendWarps = num_attend_warps(kTile);
  static constexpr int kScanThreads = 32 * kScanWarps;
  static constexpr int kThreads = kScanThreads + 32 * kAttendWarps;
  static_assert(kScanWarps <= 8);  // a byte of SharedStorage::hits each
  // The warps that attend keep more: theirs and the others' are 2 * 128 together.
  static constexpr bool kMovesRegisters = kThreads == 512;
  static constexpr int kAttendRegisters = kTwoLanesFold ? 152 : 160, kSharedRegisters = 128;
  static constexpr int kScanRegisters = 2 * kSharedRegisters - kAttendRegisters;
  static constexpr int kBlocks = kDim / 32;  // of 32 channels
  static constexpr int kFoldBlocks = kTwoLanesFold ? kBlocks / 2 : kBlocks;
  static_assert(!kTwoLanesFold || kBlocks % 2 == 0);

  // The code plane repeats every kGroupTiles tiles = kGroupQuads quads of 512 bytes.
  static constexpr int kGroupTiles = kDim == 64 ? 2 : (kDim == 96 ? 4 : 1);
  static constexpr int kGroupQuads = kGroupTiles * kBlocks / 4;
  // Quads that hold the codes of one tile, from quad tile * kBlocks / 4 on.
  static constexpr int kTileQuads = kDim == 96 || kDim == 256 ? 2 : 1;

  // A slot: byte offsets within it.
  static constexpr int kRowBytes = slot_row_bytes(kDim);
  static constexpr int kSlotBytes = slot_bytes(kDim);
  static constexpr int kResidualOffset = 512 * kTileQuads;
  static constexpr int kConstantsOffset = kResidualOffset + kTileTokens * kDim;
  static constexpr int kValuesOffset = kTileTokens * kRowBytes;
  static_assert(kConstantsOffset + 4 * kDim <= kValuesOffset);

  // Values: a lane 4 g + t reads kVector dims at a time, from kVector * (8 s + g) on. Its kDim / 8
  // dims in that order are x = 0, 1, ...; M block m of O^T has x = m (rows g) and x = m + kMBlocks
  // (rows g + 8).
  static constexpr int kVector = kDim % 64 == 0 ? 8 : 4;
  static constexpr int kSpans = kDim / (8 * kVector);
  static constexpr int kMBlocks = kDim / 16;
  // Column of a block of 8 -> row; two columns of one row have parts of its query.
  static __device__ __forceinline__ int row_of_column(int column) { return column & (kRows - 1); }
  // Values are read in parts, to save registers: part i has the spans i, i + kParts, ...
  static constexpr int kParts = kDim == 256 ? 2 : 1;
  static constexpr int kPartSpans = kSpans / kParts;
  static constexpr int kPartWords = kDim / 16 / kParts;  // 2 dims each
  static __device__ __forceinline__ int dim_of(int x, int g) {
    return (x / kVector * 8 + g) * kVector + x % kVector;
  }

  static constexpr int kPartialFloats = kRows * kDim + 2 * kRows + 4;
  // Pairs of elements of a partial that a thread (that scans) merges, of so many splits at a time.
  static constexpr int kMergePairs = (kRows * kDim / 2 + kScanThreads - 1) / kScanThreads;
  static constexpr int kMergeSplits = 16 / kMergePairs;

  // 256 dims: in the written order, or the loads that are moved up take more registers than there
  // are.
  static __device__ __forceinline__ int4 shared_int4(uint32_t s_address) {
    if constexpr (kDim > 128) return ptx::load_shared_int4(s_address);
    return *static_cast<const int4*>(__cvta_shared_to_generic(s_address));
  }

  struct SharedStorage {
    uint64_t chunk_full[kScanWarps][kMaxStages];
    // Rounds, from the scan warps to the attend warps: see rounds.cuh.
    uint64_t round_full[kRounds], round_empty[kRounds];
    uint8_t hits[kRounds][8];
    int page_ids[kRounds][kScanWarps];
    // Once an item: the query rows are there; the pseudo-max is; the attend warps' results are.
    uint64_t query_full, pseudo_max_full, states_full;
    float warp_max[kMaxRows][kScanWarps + kAttendWarps];  // unscaled scores
    int num_hits;                                         // of the split
    float2 warp_sums[kAttendWarps][8];  // (max in log2 units, sum) of the rows of the block
    // Of the other splits that are merged: see epilogue.cuh.
    float weights[kRows][kMergeSplits];
    float rescale[kRows];
    float2 totals[kRows];  // (max in log2 units, sum)
    int other_hits;
  };
  // Dynamic shared memory: SharedStorage, then slots, query rows (16-bit, [blocks of 8 rows][dim]),
  // rings of chunks.
  static constexpr int kStorageBytes = sizeof(SharedStorage);
  static constexpr int kSlotsOffset = kMaxStorageBytes;
  static constexpr int kQueryOffset = kSlotsOffset + kAttendWarps * kSlots * kSlotBytes;
  // From the values of a slot that a scan warp borrows to those of the next one.
  static constexpr int kBorrowedBytes = kAttendWarps * kSlots / kScanWarps * kSlotBytes;
  static_assert(kBorrowedBytes > 0);
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_CONFIG_CUH_
