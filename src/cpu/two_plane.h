// The two-plane key format on the CPU: quantising a page of one kv head, and reading it back.
// include/longdecode/kv_format.h has the byte map, docs/formats/kv-cache.md the maths.
//
// A key channel of a page is n = 256 * code + residual, 0 <= n <= 1023, on the grid of that channel
// and page: z = step * zero, exact value = z + step * (n + 0.5 - 512) / 256, scan value =
// z + step * (code + 0.5 - 2).
#ifndef LONGDECODE_CPU_TWO_PLANE_H_
#define LONGDECODE_CPU_TWO_PLANE_H_

#include <cstdint>

#include "longdecode/kv_format.h"
#include "longdecode/types.h"

namespace longdecode::cpu {

inline constexpr int32_t kMaxPlaneDim = 256;
inline constexpr int32_t kMaxPlanePageSize = 128;

// Keys beyond this are clamped to it (the largest bf16; only fp32 keys can be): a grid above it
// could have values that overflow fp32.
inline constexpr float kMaxKey = 3.38953139e38f;
// The smallest step of a channel that is not all zero. 256 / step and step / 256 stay normal.
inline constexpr float kMinStep = 0x1p-100f;
// fp16 zeros up to here are at most one step off, so a grid of two steps each way still reaches a
// range of two steps around its middle. Beyond, up to twice as far, they may be two steps off.
inline constexpr float kMaxZero = 4096.0f;

// The grid of one channel of one page as it is stored: step bf16, zero fp16 in units of the step.
struct ChannelGrid {
  uint16_t step_bits = 0;
  uint16_t zero_bits = 0;

  float step() const;
  float zero() const;  // z = step * zero, exact in fp32
};

// The smallest grid (to 1/32) of which four steps cover [lowest, highest]: |exact value - key| <=
// step / 512 for every key in it, up to the rounding of the exact value to fp32. All zero: step 0.
// Infinite or NaN bounds: a NaN step, so that scores become NaN as they would with the plain keys.
ChannelGrid choose_grid(float lowest, float highest);

// rows[j]: token j of the page, key_dim elements of dtype (format.dtype or not). Writes
// format.chunk_bytes() and format.residual_bytes(). A channel with an infinite or NaN key gets a
// NaN step: all its values in this page read back as NaN.
void quantize_page(const KvFormat& format, const void* const* rows, DType dtype, uint8_t* chunk,
                   uint8_t* residuals);

// The grids of a page in the form that reading needs. Padding channels are 0.
struct PageGrid {
  alignas(64) float step[kMaxPlaneDim];
  alignas(64) float zero[kMaxPlaneDim];  // z
};
void load_page_grid(const KvFormat& format, const uint8_t* chunk, PageGrid& grid);

// Exact values of the tile's 16 tokens: out[token * out_stride + channel], channel < key_dim.
// residuals: of the (page, kv head). out is 64-byte aligned, out_stride a multiple of 16.
void dequantize_tile(const KvFormat& format, const PageGrid& grid, const uint8_t* chunk,
                     const uint8_t* residuals, int32_t tile, float* out, int64_t out_stride);

// One value, for tests and tools.
float exact_key(const KvFormat& format, const uint8_t* chunk, const uint8_t* residuals,
                int32_t token, int32_t channel);
float scan_key(const KvFormat& format, const uint8_t* chunk, int32_t token, int32_t channel);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_TWO_PLANE_H_
