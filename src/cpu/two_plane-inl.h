// SIMD of the two-plane format; included once per target by two_plane.cc.
//
// Bytes of a unit (16 tokens x 32 channels): group g of 64 bytes holds tokens g and g + 8, their
// 4-channel words interleaved: [g: 0..3][g+8: 0..3][g: 4..7][g+8: 4..7] ... [g+8: 28..31].
#if defined(LONGDECODE_CPU_TWO_PLANE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGDECODE_CPU_TWO_PLANE_INL_H_
#undef LONGDECODE_CPU_TWO_PLANE_INL_H_
#else
#define LONGDECODE_CPU_TWO_PLANE_INL_H_
#endif

#include <cstring>

#include "cpu/two_plane.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longdecode::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 16 channels are a multiple of every vector used here.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

inline constexpr int32_t kUnitBytes = 512;

template <DType kDType>
HWY_INLINE FloatVec LoadKeys(FloatTag df, const void* row, int64_t channel) {
  if constexpr (kDType == DType::kF32) {
    return hn::LoadU(df, static_cast<const float*>(row) + channel);
  } else if constexpr (kDType == DType::kF16) {
    const hn::Rebind<hwy::float16_t, FloatTag> dh;
    return hn::PromoteTo(df, hn::LoadU(dh, static_cast<const hwy::float16_t*>(row) + channel));
  } else {
    const hn::Rebind<hwy::bfloat16_t, FloatTag> db;
    return hn::PromoteTo(df, hn::LoadU(db, static_cast<const hwy::bfloat16_t*>(row) + channel));
  }
}

// What quantising needs of a channel: n = (key - zero) * scale + offset.
struct PageScale {
  alignas(64) float zero[kMaxPlaneDim];
  alignas(64) float scale[kMaxPlaneDim];   // 256 / step, 0 for step 0 and NaN
  alignas(64) float offset[kMaxPlaneDim];  // 512, 0 for step 0 and NaN
};

// Grids of all channels into the chunk, and their PageScale.
template <DType kDType>
HWY_NOINLINE void ChoosePageGrids(const KvFormat& format, const void* const* rows, uint8_t* chunk,
                                  PageScale& scale) {
  const FloatTag df;
  alignas(64) float lowest[16];
  alignas(64) float highest[16];
  std::memset(chunk + format.step_offset_bytes(), 0, 4 * size_t(format.padded_dim()));
  for (int32_t c = 0; c < format.key_dim; c += static_cast<int32_t>(hn::Lanes(df))) {
    FloatVec low = LoadKeys<kDType>(df, rows[0], c);
    FloatVec high = low;
    FloatVec finite = hn::Zero(df);  // 0, or NaN once a key was infinite or NaN
    for (int32_t token = 0; token < format.page_size; ++token) {
      const FloatVec key = LoadKeys<kDType>(df, rows[token], c);
      low = hn::Min(low, key);
      high = hn::Max(high, key);
      finite = hn::MulAdd(key, hn::Zero(df), finite);
    }
    hn::Store(hn::Add(low, finite), df, lowest);
    hn::Store(hn::Add(high, finite), df, highest);
    for (size_t i = 0; i < hn::Lanes(df); ++i) {
      const int32_t channel = c + static_cast<int32_t>(i);
      const ChannelGrid grid = choose_grid(lowest[i], highest[i]);
      std::memcpy(chunk + format.step_offset_bytes() + 2 * channel, &grid.step_bits, 2);
      std::memcpy(chunk + format.zero_offset_bytes() + 2 * channel, &grid.zero_bits, 2);
      const float step = grid.step();
      const bool has_grid = step > 0.0f;  // false for NaN too
      scale.zero[channel] = has_grid ? grid.zero() : 0.0f;
      scale.scale[channel] = has_grid ? 256.0f / step : 0.0f;
      scale.offset[channel] = has_grid ? 512.0f : 0.0f;
    }
  }
}

// One token: its 2-bit codes and residuals as bytes in channel order.
template <DType kDType>
HWY_INLINE void QuantizeRow(const KvFormat& format, const void* row, const PageScale& scale,
                            uint8_t* HWY_RESTRICT codes, uint8_t* HWY_RESTRICT residuals) {
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint8_t, FloatTag> db;
  for (int32_t c = 0; c < format.key_dim; c += static_cast<int32_t>(hn::Lanes(df))) {
    FloatVec key = LoadKeys<kDType>(df, row, c);
    if constexpr (kDType == DType::kF32) {
      key = hn::Min(hn::Max(key, hn::Set(df, -kMaxKey)), hn::Set(df, kMaxKey));
    }
    const FloatVec x = hn::MulAdd(hn::Sub(key, hn::Load(df, scale.zero + c)),
                                  hn::Load(df, scale.scale + c), hn::Load(df, scale.offset + c));
    // x <= 0 and NaN become 0.
    const FloatVec clamped =
        hn::Min(hn::IfThenElseZero(hn::Gt(x, hn::Zero(df)), x), hn::Set(df, 1023.0f));
    const auto n = hn::ConvertTo(di, clamped);
    hn::StoreU(hn::DemoteTo(db, hn::ShiftRight<8>(n)), db, codes + c);
    hn::StoreU(hn::DemoteTo(db, hn::And(n, hn::Set(di, 255))), db, residuals + c);
  }
}

// 16 bytes (4 words) of token g and of token g + 8, shifted left, -> 32 bytes of a group. Codes
// share their bytes with other units: the first unit (shift 0) stores, the others are or-ed in.
HWY_INLINE void StoreWords(const uint8_t* HWY_RESTRICT low, const uint8_t* HWY_RESTRICT high,
                           int32_t shift, uint8_t* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (int32_t i = 0; i < 16; ++i) {
    uint8_t* pair = to + i / 4 * 8 + i % 4;
    pair[0] = static_cast<uint8_t>((shift == 0 ? 0 : pair[0]) | low[i] << shift);
    pair[4] = static_cast<uint8_t>((shift == 0 ? 0 : pair[4]) | high[i] << shift);
  }
#else
  const hn::Full128<uint8_t> d8;
  const hn::Full128<uint32_t> d32;
  const auto low_words = hn::ShiftLeftSame(hn::BitCast(d32, hn::LoadU(d8, low)), shift);
  const auto high_words = hn::ShiftLeftSame(hn::BitCast(d32, hn::LoadU(d8, high)), shift);
  auto first = hn::BitCast(d8, hn::InterleaveLower(d32, low_words, high_words));
  auto second = hn::BitCast(d8, hn::InterleaveUpper(d32, low_words, high_words));
  if (shift != 0) {
    first = hn::Or(first, hn::LoadU(d8, to));
    second = hn::Or(second, hn::LoadU(d8, to + 16));
  }
  hn::StoreU(first, d8, to);
  hn::StoreU(second, d8, to + 16);
#endif
}

// The inverse: 32 bytes of a group, shifted right and masked bytewise, -> 16 bytes of each token.
HWY_INLINE void LoadWords(const uint8_t* HWY_RESTRICT from, int32_t shift, uint8_t mask,
                          uint8_t* HWY_RESTRICT low, uint8_t* HWY_RESTRICT high) {
#if HWY_TARGET == HWY_SCALAR
  for (int32_t i = 0; i < 16; ++i) {
    const uint8_t* pair = from + i / 4 * 8 + i % 4;
    low[i] = static_cast<uint8_t>(pair[0] >> shift & mask);
    high[i] = static_cast<uint8_t>(pair[4] >> shift & mask);
  }
#else
  const hn::Full128<uint8_t> d8;
  const hn::Full128<uint32_t> d32;
  const auto field = [&](const uint8_t* bytes) HWY_ATTR {
    const auto words = hn::BitCast(d32, hn::LoadU(d8, bytes));
    return hn::BitCast(
        d32, hn::And(hn::BitCast(d8, hn::ShiftRightSame(words, shift)), hn::Set(d8, mask)));
  };
  const auto first = field(from);
  const auto second = field(from + 16);
  hn::StoreU(hn::BitCast(d8, hn::ConcatEven(d32, second, first)), d8, low);
  hn::StoreU(hn::BitCast(d8, hn::ConcatOdd(d32, second, first)), d8, high);
#endif
}

// Rows of bytes in channel order -> a unit's layout.
HWY_INLINE void StoreUnit(const uint8_t* HWY_RESTRICT codes, const uint8_t* HWY_RESTRICT residuals,
                          int64_t row_stride, int32_t shift, uint8_t* HWY_RESTRICT code_unit,
                          uint8_t* HWY_RESTRICT residual_unit) {
  for (int32_t g = 0; g < 8; ++g) {
    for (int32_t half = 0; half < 2; ++half) {
      const int64_t low = g * row_stride + 16 * half;
      const int64_t high = low + 8 * row_stride;
      const int64_t to = 64 * g + 32 * half;
      StoreWords(codes + low, codes + high, shift, code_unit + to);
      StoreWords(residuals + low, residuals + high, 0, residual_unit + to);
    }
  }
}

template <DType kDType>
void QuantizePageTyped(const KvFormat& format, const void* const* rows, uint8_t* chunk,
                       uint8_t* residuals) {
  PageScale scale;
  ChoosePageGrids<kDType>(format, rows, chunk, scale);
  // One tile in channel order; the padding channels stay 0.
  alignas(64) uint8_t tile_codes[kTileTokens * kMaxPlaneDim] = {};
  alignas(64) uint8_t tile_residuals[kTileTokens * kMaxPlaneDim] = {};
  const int64_t row_stride = format.padded_dim();
  for (int32_t first = 0; first < format.page_size; first += kTileTokens) {
    for (int32_t i = 0; i < kTileTokens; ++i) {
      QuantizeRow<kDType>(format, rows[first + i], scale, tile_codes + i * row_stride,
                          tile_residuals + i * row_stride);
    }
    for (int32_t block = 0; block < format.num_blocks(); ++block) {
      const int32_t channel = block * kChannelBlock;
      const int64_t unit = format.unit(first, channel);
      StoreUnit(tile_codes + channel, tile_residuals + channel, row_stride,
                format.code_shift(first, channel), chunk + unit / 4 * kUnitBytes,
                residuals + unit * kUnitBytes);
    }
  }
}

void QuantizePage(const KvFormat& format, const void* const* rows, DType dtype, uint8_t* chunk,
                  uint8_t* residuals) {
  switch (dtype) {
    case DType::kF32:
      return QuantizePageTyped<DType::kF32>(format, rows, chunk, residuals);
    case DType::kF16:
      return QuantizePageTyped<DType::kF16>(format, rows, chunk, residuals);
    case DType::kBF16:
      return QuantizePageTyped<DType::kBF16>(format, rows, chunk, residuals);
  }
}

void LoadPageGrid(const KvFormat& format, const uint8_t* chunk, PageGrid& grid) {
  const FloatTag df;
  const uint8_t* steps = chunk + format.step_offset_bytes();
  const uint8_t* zeros = chunk + format.zero_offset_bytes();
  for (int32_t c = 0; c < format.padded_dim(); c += static_cast<int32_t>(hn::Lanes(df))) {
    const FloatVec step = LoadKeys<DType::kBF16>(df, steps, c);
    hn::Store(step, df, grid.step + c);
    hn::Store(hn::Mul(step, LoadKeys<DType::kF16>(df, zeros, c)), df, grid.zero + c);
  }
}

// 16 channels of one token, as n - 511.5 on the channel's grid.
HWY_INLINE void DequantizeRow(const uint8_t* HWY_RESTRICT codes,
                              const uint8_t* HWY_RESTRICT residuals, const PageGrid& grid,
                              int32_t channel, float* HWY_RESTRICT out) {
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint8_t, FloatTag> db;
  for (int32_t c = 0; c < 16; c += static_cast<int32_t>(hn::Lanes(df))) {
    const auto code = hn::PromoteTo(di, hn::LoadU(db, codes + c));
    const auto residual = hn::PromoteTo(di, hn::LoadU(db, residuals + c));
    const auto n = hn::ConvertTo(df, hn::Or(hn::ShiftLeft<8>(code), residual));
    const FloatVec step = hn::Mul(hn::Load(df, grid.step + channel + c), hn::Set(df, 0x1p-8f));
    hn::Store(
        hn::MulAdd(hn::Sub(n, hn::Set(df, 511.5f)), step, hn::Load(df, grid.zero + channel + c)),
        df, out + channel + c);
  }
}

void DequantizeTile(const KvFormat& format, const PageGrid& grid, const uint8_t* chunk,
                    const uint8_t* residuals, int32_t tile, float* out, int64_t out_stride) {
  alignas(16) uint8_t codes[2][16];
  alignas(16) uint8_t rest[2][16];
  for (int32_t channel = 0; channel < format.key_dim; channel += 16) {
    const int32_t token = tile * kTileTokens;
    const int64_t unit = format.unit(token, channel);
    const int32_t shift = format.code_shift(token, channel);
    const int64_t half = channel % kChannelBlock * 2;
    const uint8_t* code_unit = chunk + unit / 4 * kUnitBytes + half;
    const uint8_t* residual_unit = residuals + unit * kUnitBytes + half;
    for (int32_t g = 0; g < 8; ++g) {
      LoadWords(code_unit + 64 * g, shift, 0x03, codes[0], codes[1]);
      LoadWords(residual_unit + 64 * g, 0, 0xff, rest[0], rest[1]);
      DequantizeRow(codes[0], rest[0], grid, channel, out + g * out_stride);
      DequantizeRow(codes[1], rest[1], grid, channel, out + (g + 8) * out_stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace longdecode::cpu
HWY_AFTER_NAMESPACE();

#endif  // LONGDECODE_CPU_TWO_PLANE_INL_H_
