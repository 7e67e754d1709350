// Scanning the 2-bit code plane of a page: which tokens may matter to which query row.
//
// Per (page, row) the query is folded with the channel steps, f_c = q_c * step_c, and rounded to
// 8 bits with a scale of its own, f_c ~ unit * n_c. Then the 2-bit score is
//   s~ = softmax_scale * (sum_c q_c z_c + unit * (sum_c n_c code_c - 1.5 sum_c n_c))
// and s~ + margin >= threshold is a comparison of the integer sum_c n_c code_c with an integer.
#ifndef LONGDECODE_CPU_FFD_SCAN_H_
#define LONGDECODE_CPU_FFD_SCAN_H_

#include <cstdint>
#include <span>

#include "cpu/two_plane.h"
#include "longdecode/attention.h"

namespace longdecode::cpu {

inline constexpr int32_t kMaxScanRows = 16;  // rows folded and scanned at a time

// Query rows to be folded, and what a token's score has to reach.
struct ScanRows {
  int32_t num_rows = 0;               // 1..kMaxScanRows
  int32_t padded_dim = 0;             // KvFormat::padded_dim()
  const float* q = nullptr;           // [num_rows][padded_dim], padding 0, 64-byte aligned
  const float* thresholds = nullptr;  // [num_rows] before the soft cap
  float softmax_scale = 1.0f;
  float margin_sigmas = 0.0f;
  bool certified = false;
};

// Rows folded for one page. sum_c n_c code_c >= threshold: candidate.
struct FoldedRows {
  // [row][2 * padded_dim]: every 4-channel word twice, the order of a group of the code plane.
  alignas(64) int8_t q[kMaxScanRows * 2 * kMaxPlaneDim];
  int32_t thresholds[kMaxScanRows];
};

// Whatever cannot be decided (NaN, infinity) gets a threshold that every token reaches.
void fold_rows(const PageGrid& grid, const ScanRows& rows, FoldedRows& folded);

// The threshold m~ - delta on a score before the soft cap (monotone). Certified: lowered by the
// fp32 rounding of m~.
float uncapped_threshold(float pseudo_max, const FfdOptions& options, float soft_cap);

// Bit i of a hit mask is token hit_token(i) of the tile.
constexpr int32_t hit_token(int32_t bit) { return bit / 4 * 2 + bit % 4 / 2 + bit % 2 * 8; }

// Tiles [tile_begin, tile_end) of a page. hits[(tile - tile_begin) * num_rows + row].
using ScanTiles = void (*)(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin,
                           int32_t tile_end, const FoldedRows& rows, int32_t num_rows,
                           uint16_t* hits);

struct ScanKernel {
  const char* isa;
  ScanTiles scan_tiles;
};
// The kernels that this CPU runs, best first; all give the same bits. The last one is portable.
std::span<const ScanKernel> scan_kernels();
// The best one among those that the device has.
const ScanKernel& select_scan_kernel(const DeviceInfo& device);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_SCAN_H_
