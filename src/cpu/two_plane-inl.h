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

#include <cmath>
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

// choose_grid of the channels from c on; low and high are NaN where a key is infinite or NaN.
HWY_INLINE void StoreGrids(const KvFormat& format, int32_t c, FloatVec low, FloatVec high,
                           uint8_t* chunk, PageScale& scale) {
  auto* steps = reinterpret_cast<uint16_t*>(chunk + format.step_offset_bytes()) + c;
  auto* zeros = reinterpret_cast<uint16_t*>(chunk + format.zero_offset_bytes()) + c;
#if HWY_TARGET == HWY_SCALAR  // its conversion to fp16 does not round to nearest
  const ChannelGrid grid = choose_grid(hn::GetLane(low), hn::GetLane(high));
  *steps = grid.step_bits;
  *zeros = grid.zero_bits;
  const float step = grid.step();
  const bool has_grid = step > 0.0f;  // false for NaN too
  scale.zero[c] = has_grid ? grid.zero() : 0.0f;
  scale.scale[c] = has_grid ? 256.0f / step : 0.0f;
  scale.offset[c] = has_grid ? 512.0f : 0.0f;
#else
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  const hn::Rebind<uint16_t, FloatTag> du16;
  const auto is_number = hn::And(hn::Eq(low, low), hn::Eq(high, high));
  const auto is_zero = hn::And(hn::Eq(low, hn::Zero(df)), hn::Eq(high, hn::Zero(df)));
  const auto has_grid = hn::AndNot(is_zero, is_number);
  const FloatVec limit = hn::Set(df, kMaxKey);
  const FloatVec lowest = hn::Max(hn::Min(low, limit), hn::Neg(limit));
  const FloatVec highest = hn::Max(hn::Min(high, limit), hn::Neg(limit));
  const FloatVec half = hn::Set(df, 0.5f);
  const FloatVec quarter = hn::Set(df, 0.25f);
  const FloatVec middle = hn::Add(hn::Mul(highest, half), hn::Mul(lowest, half));
  FloatVec step = hn::Max(hn::Max(hn::Sub(hn::Mul(highest, quarter), hn::Mul(lowest, quarter)),
                                  hn::Mul(hn::Abs(middle), hn::Set(df, 0.5f / kMaxZero))),
                          hn::Set(df, kMinStep));
  for (;;) {
    const auto bits = hn::ShiftRight<16>(hn::Add(hn::BitCast(di, step), hn::Set(di, 0xFFFF)));
    step = hn::BitCast(df, hn::ShiftLeft<16>(bits));
    const auto zero_half = hn::DemoteTo(dh, hn::Div(middle, step));
    const FloatVec zero = hn::Mul(step, hn::PromoteTo(df, zero_half));
    const FloatVec reach = hn::Add(step, step);
    const auto fits = hn::And(hn::Le(hn::Sub(highest, zero), reach),
                              hn::Ge(hn::Sub(lowest, zero), hn::Neg(reach)));
    const auto open = hn::AndNot(fits, has_grid);
    if (!hn::AllFalse(df, open)) {
      step = hn::IfThenElse(open, hn::Mul(step, hn::Set(df, 1.03125f)), step);
      continue;
    }
    const FloatVec stored =
        hn::IfThenElse(has_grid, step, hn::IfThenElse(is_number, hn::Zero(df), hn::Set(df, NAN)));
    const auto stored_bits = hn::ShiftRight<16>(hn::BitCast(du, stored));
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, stored_bits)), du16, steps);
    hn::StoreU(hn::DemoteTo(dh, hn::IfThenElseZero(has_grid, hn::PromoteTo(df, zero_half))), dh,
               reinterpret_cast<hwy::float16_t*>(zeros));
    hn::Store(hn::IfThenElseZero(has_grid, zero), df, scale.zero + c);
    hn::Store(hn::IfThenElseZero(has_grid, hn::Div(hn::Set(df, 256.0f), step)), df,
              scale.scale + c);
    hn::Store(hn::IfThenElseZero(has_grid, hn::Set(df, 512.0f)), df, scale.offset + c);
    return;
  }
#endif
}

// Grids of all channels into the chunk, and their PageScale.
template <DType kDType>
HWY_NOINLINE void ChoosePageGrids(const KvFormat& format, const void* const* rows, uint8_t* chunk,
                                  PageScale& scale) {
  const FloatTag df;
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
    StoreGrids(format, c, hn::Add(low, finite), hn::Add(high, finite), chunk, scale);
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

#if HWY_TARGET == HWY_SCALAR

void DequantizeTile(const KvFormat& format, const PageGrid& grid, const uint8_t* chunk,
                    const uint8_t* residuals, int32_t tile, float* out, int64_t out_stride) {
  for (int32_t i = 0; i < kTileTokens; ++i) {
    const int32_t token = tile * kTileTokens + i;
    for (int32_t c = 0; c < format.key_dim; ++c) {
      const int32_t code =
          chunk[format.code_offset_bytes(token, c)] >> format.code_shift(token, c) & 3;
      const int32_t n = 256 * code + residuals[format.residual_offset_bytes(token, c)];
      out[i * out_stride + c] =
          (static_cast<float>(n) - 511.5f) * (grid.step[c] * 0x1p-8f) + grid.zero[c];
    }
  }
}

#else

using ByteTag = hn::CappedTag<uint8_t, 64>;

// Channels of one token as 16-bit n, from `channel` on -> exact values.
HWY_INLINE void StoreExact(hn::Vec<hn::Repartition<uint16_t, ByteTag>> n, const PageGrid& grid,
                           int32_t channel, int32_t key_dim, float* HWY_RESTRICT out) {
  const hn::Repartition<float, ByteTag> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Half<hn::Repartition<uint16_t, ByteTag>> dh;
  const auto store = [&](auto half, int32_t c) HWY_ATTR {
    const auto centred = hn::Sub(hn::ConvertTo(df, hn::PromoteTo(di, half)), hn::Set(df, 511.5f));
    const auto step = hn::Mul(hn::Load(df, grid.step + c), hn::Set(df, 0x1p-8f));
    hn::Store(hn::MulAdd(centred, step, hn::Load(df, grid.zero + c)), df, out + c);
  };
  store(hn::LowerHalf(dh, n), channel);
  // head_dim 80 ends in the middle of a block.
  const int32_t second = channel + static_cast<int32_t>(hn::Lanes(df));
  if (second < key_dim) store(hn::UpperHalf(dh, n), second);
}

void DequantizeTile(const KvFormat& format, const PageGrid& grid, const uint8_t* chunk,
                    const uint8_t* residuals, int32_t tile, float* out, int64_t out_stride) {
  const ByteTag d8;
  const hn::Repartition<uint16_t, ByteTag> d16;
  const hn::Repartition<uint64_t, ByteTag> d64;
  const auto num_bytes = static_cast<int32_t>(hn::Lanes(d8));
  for (int32_t block = 0; block < format.num_blocks(); ++block) {
    const int32_t unit = tile * format.num_blocks() + block;
    const uint8_t* code_unit = chunk + unit / 4 * kUnitBytes;
    const uint8_t* residual_unit = residuals + int64_t{unit} * kUnitBytes;
    const auto mask = hn::Set(d8, uint8_t{3});
    for (int32_t i = 0; i < kUnitBytes; i += num_bytes) {
      const int32_t channel = block * kChannelBlock + i % 64 / 2;
      if (channel >= format.key_dim) continue;
      const auto words = hn::BitCast(d16, hn::LoadU(d8, code_unit + i));
      const auto code = hn::And(hn::BitCast(d8, hn::ShiftRightSame(words, 2 * (unit % 4))), mask);
      const auto residual = hn::LoadU(d8, residual_unit + i);
      // 16-bit n of 4 channels of token g and 4 of token g + 8; then 8 channels of each.
      const auto low = hn::BitCast(d64, hn::InterleaveLower(d8, residual, code));
      const auto high = hn::BitCast(d64, hn::InterleaveUpper(d8, residual, code));
      float* row = out + i / 64 * out_stride;
      StoreExact(hn::BitCast(d16, hn::InterleaveLower(d64, low, high)), grid, channel,
                 format.key_dim, row);
      StoreExact(hn::BitCast(d16, hn::InterleaveUpper(d64, low, high)), grid, channel,
                 format.key_dim, row + 8 * out_stride);
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace longdecode::cpu
HWY_AFTER_NAMESPACE();

#endif  // LONGDECODE_CPU_TWO_PLANE_INL_H_
