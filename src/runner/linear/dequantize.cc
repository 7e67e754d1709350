#include <cstddef>
#include <cstring>

#include "base/float_convert.h"
#include "runner/linear/matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runner/linear/dequantize.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace longdecode::runner::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a 32-weight block is a whole number of vectors on every target.
using DF = hn::CappedTag<float, 16>;
using DI32 = hn::Rebind<int32_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
using DI8 = hn::Rebind<int8_t, DF>;
using DU16 = hn::Rebind<uint16_t, DF>;

HWY_INLINE size_t lanes() { return hn::Lanes(DF()); }

// out[i] = scale * low nibble + offset, out[i + 16] = scale * high nibble + offset, i < 16.
HWY_INLINE void expand_nibbles(const uint8_t* q, float scale, float offset, float* out) {
  const DF df;
  const auto vscale = hn::Set(df, scale);
  const auto voffset = hn::Set(df, offset);
  for (size_t i = 0; i < 16; i += lanes()) {
    const auto bytes = hn::PromoteTo(DI32(), hn::LoadU(DU8(), q + i));
    const auto low = hn::ConvertTo(df, hn::And(bytes, hn::Set(DI32(), 15)));
    const auto high = hn::ConvertTo(df, hn::ShiftRight<4>(bytes));
    hn::StoreU(hn::MulAdd(low, vscale, voffset), df, out + i);
    hn::StoreU(hn::MulAdd(high, vscale, voffset), df, out + 16 + i);
  }
}

void expand_q6k(const uint8_t* block_bytes, float* out) {
  const DF df;
  const DI32 di;
  BlockQ6_K block;
  std::memcpy(&block, block_bytes, sizeof(block));
  const float d = f16_to_f32(block.d);
  for (int32_t group = 0; group < 16; ++group) {
    const int32_t half = group / 8;
    const int32_t k = group % 8 / 2;
    const int32_t start = group % 2 * 16;  // within the 32 weights of k
    const uint8_t* ql = block.ql + half * 64 + k % 2 * 32 + start;
    const uint8_t* qh = block.qh + half * 32 + start;
    const auto scale = hn::Set(df, d * static_cast<float>(block.scale[group]));
    for (size_t i = 0; i < 16; i += lanes()) {
      const auto low_byte = hn::PromoteTo(di, hn::LoadU(DU8(), ql + i));
      const auto low = hn::And(hn::ShiftRightSame(low_byte, k / 2 * 4), hn::Set(di, 15));
      const auto high_byte = hn::PromoteTo(di, hn::LoadU(DU8(), qh + i));
      const auto high = hn::And(hn::ShiftRightSame(high_byte, 2 * k), hn::Set(di, 3));
      const auto q = hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(di, 32));
      hn::StoreU(hn::Mul(hn::ConvertTo(df, q), scale), df, out + group * 16 + i);
    }
  }
}

// Q4_K and, with the fifth bits of `qh`, Q5_K (else nullptr).
void expand_k_block(const uint8_t* block, const uint8_t* q, const uint8_t* qh, float* out) {
  const DF df;
  const DI32 di;
  uint16_t halves[2];
  std::memcpy(halves, block, 4);
  const float d = f16_to_f32(halves[0]);
  const float dmin = f16_to_f32(halves[1]);
  const GroupScales groups = unpack_group_scales(block + offsetof(BlockQ4_K, packed));
  for (int32_t g = 0; g < 8; ++g) {
    const auto scale = hn::Set(df, d * static_cast<float>(groups.scales >> 8 * g & 0xff));
    const auto offset = hn::Set(df, -dmin * static_cast<float>(groups.mins >> 8 * g & 0xff));
    for (size_t i = 0; i < 32; i += lanes()) {
      const auto bytes = hn::PromoteTo(di, hn::LoadU(DU8(), q + g / 2 * 32 + i));
      auto value = hn::And(hn::ShiftRightSame(bytes, g % 2 * 4), hn::Set(di, 15));
      if (qh != nullptr) {
        const auto high = hn::ShiftRightSame(hn::PromoteTo(di, hn::LoadU(DU8(), qh + i)), g);
        value = hn::Or(value, hn::ShiftLeft<4>(hn::And(high, hn::Set(di, 1))));
      }
      hn::StoreU(hn::MulAdd(hn::ConvertTo(df, value), scale, offset), df, out + g * 32 + i);
    }
  }
}

void expand_blocks(GgmlType type, const uint8_t* row, int64_t num_cols, float* out) {
  const DF df;
  for (int64_t col = 0; col < num_cols; col += kBlockWeights) {
    uint16_t constants[2];
    if (type == GgmlType::kQ4_0) {
      const uint8_t* block = row + col / kBlockWeights * int64_t{sizeof(BlockQ4_0)};
      std::memcpy(constants, block, 2);
      const float d = f16_to_f32(constants[0]);
      expand_nibbles(block + offsetof(BlockQ4_0, q), d, -8.0f * d, out + col);
    } else if (type == GgmlType::kQ4_1) {
      const uint8_t* block = row + col / kBlockWeights * int64_t{sizeof(BlockQ4_1)};
      std::memcpy(constants, block, 4);
      expand_nibbles(block + offsetof(BlockQ4_1, q), f16_to_f32(constants[0]),
                     f16_to_f32(constants[1]), out + col);
    } else {
      const uint8_t* block = row + col / kBlockWeights * int64_t{sizeof(BlockQ8_0)};
      std::memcpy(constants, block, 2);
      const auto scale = hn::Set(df, f16_to_f32(constants[0]));
      const auto* q = reinterpret_cast<const int8_t*>(block + offsetof(BlockQ8_0, q));
      for (size_t i = 0; i < 32; i += lanes()) {
        const auto value = hn::ConvertTo(df, hn::PromoteTo(DI32(), hn::LoadU(DI8(), q + i)));
        hn::StoreU(hn::Mul(value, scale), df, out + col + static_cast<int64_t>(i));
      }
    }
  }
}

// fp16 and bf16 rows.
void expand_half(GgmlType type, const uint8_t* row, int64_t num_cols, float* out) {
  const DF df;
  const auto step = static_cast<int64_t>(lanes());
  int64_t col = 0;
  const auto* bits = reinterpret_cast<const uint16_t*>(row);
  for (; col + step <= num_cols; col += step) {
    const auto raw = hn::LoadU(DU16(), bits + col);
    if (type == GgmlType::kF16) {
      const hn::Rebind<hwy::float16_t, DF> df16;
      hn::StoreU(hn::PromoteTo(df, hn::BitCast(df16, raw)), df, out + col);
    } else {
      const hn::Rebind<uint32_t, DF> du32;
      const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du32, raw));
      hn::StoreU(hn::BitCast(df, wide), df, out + col);
    }
  }
  const DType dtype = type == GgmlType::kF16 ? DType::kF16 : DType::kBF16;
  for (; col < num_cols; ++col) out[col] = load_element(row, dtype, col);
}

void dequantize(const Matrix& matrix, int64_t row_idx, float* out) {
  const uint8_t* row = matrix.row(row_idx);
  switch (matrix.type) {
    case GgmlType::kF32:
      std::memcpy(out, row, static_cast<size_t>(matrix.num_cols) * sizeof(float));
      return;
    case GgmlType::kF16:
    case GgmlType::kBF16:
      return expand_half(matrix.type, row, matrix.num_cols, out);
    case GgmlType::kQ4_0:
    case GgmlType::kQ4_1:
    case GgmlType::kQ8_0:
      return expand_blocks(matrix.type, row, matrix.num_cols, out);
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      for (int64_t col = 0; col < matrix.num_cols; col += kSuperBlockWeights) {
        const bool five = matrix.type == GgmlType::kQ5_K;
        const auto size = static_cast<int64_t>(five ? sizeof(BlockQ5_K) : sizeof(BlockQ4_K));
        const uint8_t* block = row + col / kSuperBlockWeights * size;
        const size_t q = five ? offsetof(BlockQ5_K, q) : offsetof(BlockQ4_K, q);
        expand_k_block(block, block + q, five ? block + offsetof(BlockQ5_K, qh) : nullptr,
                       out + col);
      }
      return;
    case GgmlType::kQ6_K:
      for (int64_t col = 0; col < matrix.num_cols; col += kSuperBlockWeights) {
        expand_q6k(row + col / kSuperBlockWeights * int64_t{sizeof(BlockQ6_K)}, out + col);
      }
      return;
  }
}

void to_bf16(const float* from, int64_t count, uint16_t* to) {
  const DF df;
  const hn::Rebind<uint32_t, DF> du32;
  const auto step = static_cast<int64_t>(lanes());
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const auto bits = hn::BitCast(du32, hn::LoadU(df, from + i));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du32, 0x7fff)));
    const auto top = hn::BitCast(DI32(), hn::ShiftRight<16>(rounded));
    hn::StoreU(hn::DemoteTo(DU16(), top), DU16(), to + i);
  }
  for (; i < count; ++i) to[i] = f32_to_bf16(from[i]);
}

}  // namespace longdecode::runner::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longdecode::runner {

HWY_EXPORT(dequantize);
HWY_EXPORT(to_bf16);

void dequantize_row(const Matrix& matrix, int64_t row_idx, float* out) {
  HWY_DYNAMIC_DISPATCH(dequantize)(matrix, row_idx, out);
}

void convert_to_bf16(const float* from, int64_t count, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(to_bf16)(from, count, to);
}

}  // namespace longdecode::runner
#endif  // HWY_ONCE
