// Derived constants and shared memory of an instance.
//
// Warps 0 ... token_warps * row_groups - 1 compute: warp w has tokens 16 (w % token_warps) ... of
// every tile and row group w / token_warps. The last warp loads. Nothing but the ring's barriers
// couples the warps until a segment ends.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_CONFIG_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_CONFIG_CUH_

#include <cstddef>
#include <cstdint>

#include "cuda/device/tile_ranges.cuh"
#include "cuda/kernels/gqa_decode/params.h"
#include "cuda/kernels/gqa_decode/tile.h"
#include "cuda/ptx/memory.cuh"

namespace longdecode::cuda::gqa {

inline constexpr int kSegmentSlots = 2;

template <Tile kTile>
struct Config {
  static constexpr int kDim = kTile.head_dim;
  static constexpr bool kIsF16 = kTile.is_f16;
  static constexpr int kTokenWarps = kTile.token_warps();
  static constexpr int kTileTokens = kTile.tokens();
  static constexpr int kMaxRowGroups = kTile.max_row_groups();
  // K and V tiles lie as [box][chunk of channels][token of the box][kRowBytes], swizzled so that
  // the 8 rows of a matrix are in different banks. A box is what one page gives to the tile.
  static constexpr int kRowBytes = kDim % 64 == 0 ? 128 : 64;
  static constexpr int kChunks = 2 * kDim / kRowBytes;
  static constexpr int kChunkSteps = kRowBytes / 32;  // blocks of 16 channels in a chunk
  static constexpr int kDimBlocks = kDim / 16;        // k steps of S, M blocks of O^T
  static constexpr int kPlaneBytes = kTileTokens * kDim * 2;
  static constexpr int kStageBytes = 2 * kPlaneBytes;  // K, V
  // Bytes of a CTA's ring: two CTAs an SM (a row group each), or one; on sm_80 one. A stage is
  // being consumed.
  static constexpr int ring_bytes(int row_groups) {
    if (kTile.is_sm80) return 64 * 1024;
    return (row_groups == 1 ? 80 : 160) * 1024;
  }
  static constexpr int num_stages(int row_groups) { return ring_bytes(row_groups) / kStageBytes; }
  static constexpr int kMaxStages = num_stages(kMaxRowGroups);
  static constexpr int kMaxThreads = 32 * (kTokenWarps * kMaxRowGroups + 1);
  // A partial: O^T in fragment order, float4 [kDimBlocks][32 lanes] = (dim g, row 2c), (g, 2c + 1),
  // (g + 8, 2c), (g + 8, 2c + 1), then [4] = (max, sum) of rows 2c and 2c + 1.
  static constexpr int kPartialFloat4 = kDimBlocks * 32 + 4;

  struct WarpResult {  // as a partial
    float4 values[kDimBlocks][32];
    float4 rows[4];
  };
  // Followed by the ring, [stages][K, V][kPlaneBytes], at Params::ring_offset.
  struct SharedStorage {
    uint64_t k_full[kMaxStages], v_full[kMaxStages], empty[kMaxStages];
    uint64_t segment_full[kSegmentSlots], segment_empty[kSegmentSlots];
    int4 segments[kSegmentSlots][2];
    int block_sums[kSequenceBlocks];  // batches beyond kWindowSequences only
    alignas(16) WarpResult results[kMaxRowGroups][kTokenWarps];  // of the CTA's row groups only
  };

  static constexpr int ring_offset(int row_groups) {
    const size_t end =
        offsetof(SharedStorage, results) + row_groups * sizeof(WarpResult) * kTokenWarps;
    return static_cast<int>((end + 1023) / 1024 * 1024);
  }
  static constexpr int shared_bytes(int row_groups) {
    return ring_offset(row_groups) + kStageBytes * num_stages(row_groups);
  }
  // 228 KB an SM for CTAs, each of which costs 1 KB more; of sm_86 and sm_89 100 KB.
  static_assert(kTile.is_sm80 || 2 * (shared_bytes(1) + 1024) <= 233472,
                "two CTAs with one row group");
  static_assert(shared_bytes(kMaxRowGroups) <= (kTile.is_sm80 ? 101376 : 232448));
};

// Shared-memory address of a member of SharedStorage.
#define LD_SHARED(Config, base, member) \
  ((base) + static_cast<uint32_t>(offsetof(typename Config::SharedStorage, member)))

// The kernels' view of lengths: tiles of a sequence, from the first that some row sees. Rows of a
// ragged sequence start later than assumed here; a tile may then be hidden altogether.
template <int kTileTokens>
struct SequenceTiles {
  const Params& params;

  static __device__ __forceinline__ int first(const Params& params, int kv_len) {
    if (params.sliding_window == 0) return 0;
    return max(0, kv_len - params.query_len - params.sliding_window + 1) / kTileTokens;
  }
  __device__ __forceinline__ int operator()(int sequence) const {
    const int kv_len = ptx::load_global_i32(params.g_kv_lens + sequence);
    return max(1, (kv_len + kTileTokens - 1) / kTileTokens - first(params, kv_len));
  }
};

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_CONFIG_CUH_
