// The structural parameter of the kernel and the list of all its instances.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_TILE_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_TILE_H_

#include <cstdint>

namespace longdecode::cuda::gqa {

// A query row is one (query token, head of the group): row = token * group + head. Rows are padded
// to row groups of 8, the N of both products; the tokens are their M and K.
inline constexpr int32_t kGroupRows = 8;

struct Tile {
  int32_t head_dim;      // 64, 96, 128, 256
  bool is_f16;           // else bf16
  bool is_sm80 = false;  // else of sm_90a

  constexpr bool operator==(const Tile&) const = default;

  // Each warp scores 16 tokens of a tile. Two warps at 256: a stage stays 32 KB.
  constexpr int32_t token_warps() const { return head_dim > 128 ? 2 : 4; }
  constexpr int32_t tokens() const { return 16 * token_warps(); }
  // Row groups that share a CTA's K and V tiles; more are given to other CTAs (row blocks). Four
  // leave 96 registers a thread, too few at 96. On sm_80 two and their results fit in 99 KB.
  constexpr int32_t max_row_groups() const {
    if (is_sm80) return 2;
    return head_dim == 96 ? 3 : 4;
  }
  // Of CTAs with so many row groups.
  constexpr int32_t ctas_per_sm(int32_t row_groups) const {
    return row_groups == 1 && !is_sm80 ? 2 : 1;
  }
};

// A kernel's template parameter is an index into this list: nvcc 13.0 writes wrong host stubs for
// kernels with a structural template parameter.
inline constexpr Tile kInstances[] = {
    {64, false}, {96, false}, {128, false}, {256, false},       {64, true},
    {96, true},  {128, true}, {256, true},  {128, false, true},
};

inline constexpr int32_t kNumInstances = sizeof(kInstances) / sizeof(kInstances[0]);
// Those of sm_90a come first.
inline constexpr int32_t kFirstSm80 = 8;
static_assert(!kInstances[kFirstSm80 - 1].is_sm80 && kInstances[kFirstSm80].is_sm80);

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_TILE_H_
