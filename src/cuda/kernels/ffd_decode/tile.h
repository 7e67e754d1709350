// The structural parameter of the kernel and the list of all its instances.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_TILE_H_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_TILE_H_

#include <cstdint>

namespace longdecode::cuda::ffd {

// A query row is one (query token, head of the group): row = token * group + head. Rows are the N
// of every product, 8 columns of a matrix instruction.
struct Tile {
  int32_t head_dim;
  int32_t rows;  // 4: at most 4 rows in all, two lanes fold a query row. 8: any, in blocks of 8
  bool is_f16;   // else bf16
  bool is_sm80 = false;  // else of sm_90a

  constexpr bool operator==(const Tile&) const = default;
};

// A kernel's template parameter is an index into this list: nvcc 13.0 writes wrong host stubs for
// kernels with a structural template parameter.
inline constexpr Tile kInstances[] = {
    {128, 4, false},       {128, 8, false},       {64, 8, false}, {96, 8, false}, {256, 8, false},
    {128, 4, true},        {128, 8, true},        {64, 8, true},  {96, 8, true},  {256, 8, true},
    {128, 4, false, true}, {128, 8, false, true}, {64, 4, false}, {64, 4, true},
};

inline constexpr int32_t kNumInstances = sizeof(kInstances) / sizeof(kInstances[0]);

// Of a CTA: warps that scan, and as many that attend; on sm_80 fewer, so that slots and two stages
// of rings fit in 99 KB.
constexpr int32_t num_scan_warps(const Tile& tile) {
  return tile.head_dim > 128 || tile.is_sm80 ? 4 : 8;
}
constexpr int32_t num_attend_warps(const Tile& tile) {
  return tile.is_sm80 ? 2 : num_scan_warps(tile);
}
// A warp that attends has kSlots buffers (slots) for attended tiles: keys (codes, residuals and
// constants, or unquantised keys), then values, in padded rows.
inline constexpr int32_t kSlots = 2;
constexpr int32_t slot_row_bytes(int32_t head_dim) { return head_dim == 96 ? 256 : 2 * head_dim; }
constexpr int32_t slot_bytes(int32_t head_dim) { return 32 * slot_row_bytes(head_dim); }
// Bytes of shared memory beside slots, query rows and rings, at most.
inline constexpr int32_t kMaxStorageBytes = 12288;

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_TILE_H_
