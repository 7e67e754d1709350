// Exact scores of quantised keys with 16-bit integer products (AVX512-VNNI), straight from
// residuals and codes:
//   q . k = sum_c q_c z_c + 1 / 256 sum_c f_c (n_c - 511.5),  f_c = q_c step_c, n = 256 code +
//   residual
// Per (page, row) f is rounded to 24 bits, f_c ~ unit * F_c, and F is cut into two signed parts of
// 12 bits: the sums of their products with n are exact. What is left is an error of 2^-24 max |f_c|
// a channel, that of fp32.
//
// Not AMX, whose products alone take 140 cycles a tile: between two batches of tiles it falls
// asleep (after about 2000 cycles), and waking takes 1500.
#ifndef LONGDECODE_CPU_PLANE_SCORES_H_
#define LONGDECODE_CPU_PLANE_SCORES_H_

#include <cstdint>

#include "cpu/tile_prefetch.h"
#include "cpu/two_plane.h"
#include "longdecode/attention.h"
#include "longdecode/types.h"

namespace longdecode::cpu {

class PlaneScores {
 public:
  static constexpr int32_t kMaxRows = 16;

  // The descriptor alone and the CPU decide.
  static bool serves(const DecodeDesc& desc, const DeviceInfo& device);

  // q: [num_rows][format.padded_dim()] as pack_query makes it for kF32; both outlive this.
  PlaneScores(const KvFormat& format, const float* q, int32_t num_rows)
      : format_(format), q_(q), num_rows_(num_rows) {}

  // The page of the tiles that follow. False: a sum is not finite, its scores are another's to
  // make.
  bool take_page(const uint8_t* chunk);
  // A tile of that page: scores[row * kTileCapacity + token of the tile], unscaled. Asks for all of
  // keys_ahead and TilePrefetch::kWhileScoring of values_ahead in four calls, kTileCapacity tokens.
  void score(const uint8_t* chunk, const uint8_t* residuals, int32_t tile, float* scores,
             TilePrefetch& keys_ahead, TilePrefetch& values_ahead) const;

 private:
  static constexpr int32_t kRowChunk = 4;
  static constexpr int32_t kChunks = kMaxRows / kRowChunk;
  struct Folded {  // four rows
    // [block][half of the words][row][part]: 16-bit lanes in the order of unpacked bytes.
    alignas(64) int16_t f[kMaxPlaneDim / 32 * 2 * kRowChunk * 2 * 32];
    alignas(64) int32_t start[kRowChunk * 2 * 16];  // [row][part]: -511 times the sums of F
    float unit[kRowChunk];
    float base[kRowChunk];  // sum q_c z_c - unit / 2 sum F_c
  };
  bool fold(const PageGrid& grid, int32_t first_row, Folded& folded) const;

  const KvFormat& format_;
  const float* q_;
  int32_t num_rows_;
  Folded folded_[kChunks];
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_PLANE_SCORES_H_
