#include "cpu/two_plane.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/two_plane.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/two_plane-inl.h"

#if HWY_ONCE

namespace longdecode::cpu {

HWY_EXPORT(QuantizePage);
HWY_EXPORT(LoadPageGrid);
HWY_EXPORT(DequantizeTile);

namespace {

// bf16 of value >= 0, rounded up.
uint16_t bf16_at_least(float value) {
  const uint16_t bits = f32_to_bf16(value);
  return bf16_to_f32(bits) < value ? static_cast<uint16_t>(bits + 1) : bits;
}

uint32_t grid_bits(const uint8_t* chunk, int64_t offset_bytes, int32_t channel) {
  uint16_t bits;
  std::memcpy(&bits, chunk + offset_bytes + 2 * channel, 2);
  return bits;
}

ChannelGrid stored_grid(const KvFormat& format, const uint8_t* chunk, int32_t channel) {
  return {static_cast<uint16_t>(grid_bits(chunk, format.step_offset_bytes(), channel)),
          static_cast<uint16_t>(grid_bits(chunk, format.zero_offset_bytes(), channel))};
}

int32_t stored_code(const KvFormat& format, const uint8_t* chunk, int32_t token, int32_t channel) {
  return chunk[format.code_offset_bytes(token, channel)] >> format.code_shift(token, channel) & 3;
}

}  // namespace

float ChannelGrid::step() const { return bf16_to_f32(step_bits); }
float ChannelGrid::zero() const { return bf16_to_f32(step_bits) * f16_to_f32(zero_bits); }

ChannelGrid choose_grid(float lowest, float highest) {
  if (!std::isfinite(lowest) || !std::isfinite(highest)) return {f32_to_bf16(NAN), 0};
  if (lowest == 0.0f && highest == 0.0f) return {};
  lowest = std::clamp(lowest, -kMaxKey, kMaxKey);
  highest = std::clamp(highest, -kMaxKey, kMaxKey);
  // Halves and quarters first: highest - lowest may overflow.
  const float middle = 0.5f * highest + 0.5f * lowest;
  // From 2 kMaxZero on, rounding the zero to fp16 can move it by more than the two steps there are.
  float step =
      std::max({0.25f * highest - 0.25f * lowest, std::fabs(middle) * (0.5f / kMaxZero), kMinStep});
  for (;;) {
    ChannelGrid grid;
    grid.step_bits = bf16_at_least(step);
    step = grid.step();
    grid.zero_bits = f32_to_f16(middle / step);
    const float zero = grid.zero();
    if (highest - zero <= 2.0f * step && lowest - zero >= -2.0f * step) return grid;
    // Ends by |zero| = kMaxZero at the latest: rounding then moves it by at most one step.
    step *= 1.03125f;
  }
}

void quantize_page(const KvFormat& format, const void* const* rows, DType dtype, uint8_t* chunk,
                   uint8_t* residuals) {
  HWY_DYNAMIC_DISPATCH(QuantizePage)(format, rows, dtype, chunk, residuals);
}

void load_page_grid(const KvFormat& format, const uint8_t* chunk, PageGrid& grid) {
  HWY_DYNAMIC_DISPATCH(LoadPageGrid)(format, chunk, grid);
}

void dequantize_tile(const KvFormat& format, const PageGrid& grid, const uint8_t* chunk,
                     const uint8_t* residuals, int32_t tile, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DequantizeTile)(format, grid, chunk, residuals, tile, out, out_stride);
}

float exact_key(const KvFormat& format, const uint8_t* chunk, const uint8_t* residuals,
                int32_t token, int32_t channel) {
  const ChannelGrid grid = stored_grid(format, chunk, channel);
  const int32_t n = 256 * stored_code(format, chunk, token, channel) +
                    residuals[format.residual_offset_bytes(token, channel)];
  return std::fma(static_cast<float>(n) - 511.5f, grid.step() * (1.0f / 256.0f), grid.zero());
}

float scan_key(const KvFormat& format, const uint8_t* chunk, int32_t token, int32_t channel) {
  const ChannelGrid grid = stored_grid(format, chunk, channel);
  const auto code = static_cast<float>(stored_code(format, chunk, token, channel));
  return std::fma(code - 1.5f, grid.step(), grid.zero());
}

}  // namespace longdecode::cpu

#endif  // HWY_ONCE
