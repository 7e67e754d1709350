#include "ref/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_convert.h"

namespace longdecode::ref {
namespace {

// Beyond this zero the spacing of fp16 exceeds the two steps of slack that a grid has on a side.
constexpr double kMaxZero = 4096.0;
constexpr double kMinStep = 0x1p-126;  // the smallest normal bf16

double round_up_to_bf16(double value) {
  uint16_t bits = f32_to_bf16(static_cast<float>(value));
  while (static_cast<double>(bf16_to_f32(bits)) < value) ++bits;
  return static_cast<double>(bf16_to_f32(bits));
}

double next_bf16(double value) {
  return static_cast<double>(
      bf16_to_f32(static_cast<uint16_t>(f32_to_bf16(static_cast<float>(value)) + 1)));
}

double round_to_f16(double value) {
  return static_cast<double>(f16_to_f32(f32_to_f16(static_cast<float>(value))));
}

}  // namespace

ChannelGrid fit_grid(double low, double high) {
  const double magnitude = std::max(std::abs(low), std::abs(high));
  if (magnitude == 0.0) return {};
  if (!std::isfinite(low) || !std::isfinite(high)) return {NAN, 0.0};
  ChannelGrid grid;
  grid.step = round_up_to_bf16(std::max({(high - low) / 4, magnitude / kMaxZero, kMinStep}));
  while (true) {
    grid.zero = round_to_f16((low + high) / 2 / grid.step);
    const double center = grid.zero * grid.step;
    if (low >= center - 2 * grid.step && high <= center + 2 * grid.step) return grid;
    grid.step = next_bf16(grid.step);
  }
}

void quantize_page(const KvFormat& format, const double* keys, uint8_t* chunk, uint8_t* residuals) {
  std::memset(chunk, 0, static_cast<size_t>(format.chunk_bytes()));
  std::memset(residuals, 0, static_cast<size_t>(format.residual_bytes()));
  for (int32_t c = 0; c < format.key_dim; ++c) {
    double low = keys[c];
    double high = keys[c];
    for (int32_t token = 1; token < format.page_size; ++token) {
      const double key = keys[int64_t{token} * format.key_dim + c];
      low = std::isfinite(key) ? std::min(low, key) : NAN;  // min and max keep a NaN first argument
      high = std::max(high, key);
    }
    const ChannelGrid grid = fit_grid(low, high);
    const uint16_t step_bits = f32_to_bf16(static_cast<float>(grid.step));
    const uint16_t zero_bits = f32_to_f16(static_cast<float>(grid.zero));
    std::memcpy(chunk + format.step_offset_bytes() + 2 * c, &step_bits, 2);
    std::memcpy(chunk + format.zero_offset_bytes() + 2 * c, &zero_bits, 2);
    for (int32_t token = 0; token < format.page_size; ++token) {
      const double key = keys[int64_t{token} * format.key_dim + c];
      const bool has_grid = std::isfinite(grid.step) && grid.step > 0.0;
      const double steps = has_grid ? key / grid.step - grid.zero : 0.0;
      const auto n = static_cast<int32_t>(std::clamp(std::floor(steps * 256 + 512), 0.0, 1023.0));
      chunk[format.code_offset_bytes(token, c)] |=
          static_cast<uint8_t>(n / 256 << format.code_shift(token, c));
      residuals[format.residual_offset_bytes(token, c)] = static_cast<uint8_t>(n % 256);
    }
  }
}

ChannelGrid read_grid(const KvFormat& format, const uint8_t* chunk, int32_t channel) {
  uint16_t step_bits = 0;
  uint16_t zero_bits = 0;
  std::memcpy(&step_bits, chunk + format.step_offset_bytes() + 2 * channel, 2);
  std::memcpy(&zero_bits, chunk + format.zero_offset_bytes() + 2 * channel, 2);
  return {static_cast<double>(bf16_to_f32(step_bits)), static_cast<double>(f16_to_f32(zero_bits))};
}

int32_t read_code(const KvFormat& format, const uint8_t* chunk, int32_t token, int32_t channel) {
  return chunk[format.code_offset_bytes(token, channel)] >> format.code_shift(token, channel) & 3;
}

double scan_value(const ChannelGrid& grid, int32_t code) {
  return grid.step * (grid.zero + code + 0.5 - 2.0);
}

double exact_value(const ChannelGrid& grid, int32_t code, int32_t residual) {
  return grid.step * (grid.zero + (256 * code + residual + 0.5 - 512.0) / 256.0);
}

}  // namespace longdecode::ref
