#include "runner/linear/matvec_kernels.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/float_convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runner/linear/matvec_portable.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace longdecode::runner::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 256-bit vectors at most: half a block (16 weights) is one vector of 16-bit integers, and on
// AVX-512 machines three ports instead of two execute them.
using DI16 = hn::CappedTag<int16_t, 16>;
using DU8 = hn::Rebind<uint8_t, DI16>;
using DI8 = hn::Rebind<int8_t, DI16>;
using DI32 = hn::Repartition<int32_t, DI16>;
using DF = hn::RebindToFloat<DI32>;
using VI32 = hn::Vec<DI32>;
using VI16 = hn::Vec<DI16>;
using VF = hn::Vec<DF>;

// Dot products of 16-bit integers, spread over the lanes of a 32-bit vector.
struct IntDot {
  VI32 sum0;
  VI32 sum1;
  HWY_INLINE void add(VI16 a, VI16 b) {
    sum0 = hn::ReorderWidenMulAccumulate(DI32(), a, b, sum0, sum1);
  }
  HWY_INLINE VF value() const { return hn::ConvertTo(DF(), hn::Add(sum0, sum1)); }
};

HWY_INLINE VF dot_nibbles(const uint8_t* q, const int16_t* x) {
  const DI16 d;
  IntDot dot = {hn::Zero(DI32()), hn::Zero(DI32())};
  for (size_t i = 0; i < 16; i += hn::Lanes(d)) {
    const auto bytes = hn::PromoteTo(d, hn::LoadU(DU8(), q + i));
    dot.add(hn::And(bytes, hn::Set(d, 15)), hn::LoadU(d, x + i));
    dot.add(hn::ShiftRight<4>(bytes), hn::LoadU(d, x + 16 + i));
  }
  return dot.value();
}

HWY_INLINE VF dot_bytes(const int8_t* q, const int16_t* x) {
  const DI16 d;
  IntDot dot = {hn::Zero(DI32()), hn::Zero(DI32())};
  for (size_t i = 0; i < 32; i += hn::Lanes(d)) {
    dot.add(hn::PromoteTo(d, hn::LoadU(DI8(), q + i)), hn::LoadU(d, x + i));
  }
  return dot.value();
}

// How far ahead of a block to ask for memory. The hardware's own prefetching stops at every 4 KiB
// page; with this, weights come in 1.3 times as fast.
constexpr int64_t kPrefetchBytes = 8192;

// fp16 constants at the start of a block.
template <typename Block>
constexpr int32_t kConstants = 1;
template <>
constexpr int32_t kConstants<BlockQ4_1> = 2;

// Blocks whose constants are converted at once, through memory that stays in the first-level cache.
constexpr int64_t kSegment = 64;

// Entries past a row's last block stay zero (or what an earlier segment left), beside zero scales
// and sums of x.
struct ConstantScratch {
  alignas(64) uint16_t halves[2][kSegment + kMaxFloatLanes];
  alignas(64) float scales[kSegment + kMaxFloatLanes];
};

template <typename Block>
HWY_INLINE void copy_constants(const uint8_t* blocks, int64_t count,
                               uint16_t (*halves)[kSegment + kMaxFloatLanes]) {
  for (int64_t b = 0; b < count; ++b) {
    const uint8_t* block = blocks + b * int64_t{sizeof(Block)};
    hwy::Prefetch(block + kPrefetchBytes);
    for (int32_t c = 0; c < kConstants<Block>; ++c) std::memcpy(&halves[c][b], block + 2 * c, 2);
  }
}

// scales[b] = d_b * the scale of x's block b; returns, spread over the lanes, the part of the dot
// product that needs only the constants and the sums of x.
template <typename Block>
HWY_INLINE VF convert_constants(const uint16_t (*halves)[kSegment + kMaxFloatLanes], int64_t count,
                                const float* x_scales, const float* x_sums, float* scales) {
  const DF df;
  const hn::Rebind<hwy::float16_t, DF> df16;
  const hn::Rebind<uint16_t, DF> du16;
  VF sum = hn::Zero(df);
  for (int64_t b = 0; b < count; b += static_cast<int64_t>(hn::Lanes(df))) {
    const VF d = hn::PromoteTo(df, hn::BitCast(df16, hn::Load(du16, halves[0] + b)));
    hn::Store(hn::Mul(d, hn::LoadU(df, x_scales + b)), df, scales + b);
    if constexpr (kConstants<Block> == 2) {
      const VF m = hn::PromoteTo(df, hn::BitCast(df16, hn::Load(du16, halves[1] + b)));
      sum = hn::MulAdd(m, hn::LoadU(df, x_sums + b), sum);
    } else if constexpr (sizeof(Block) == sizeof(BlockQ4_0)) {
      sum = hn::MulAdd(hn::Mul(d, hn::Set(df, -8.0f)), hn::LoadU(df, x_sums + b), sum);
    }
  }
  return sum;
}

template <typename Block>
HWY_INLINE VF dot_block(const uint8_t* block, const int16_t* x) {
  if constexpr (sizeof(Block) == sizeof(BlockQ8_0)) {
    return dot_bytes(reinterpret_cast<const int8_t*>(block + offsetof(Block, q)), x);
  } else {
    return dot_nibbles(block + offsetof(Block, q), x);
  }
}

// sum + the dot product of `count` blocks with x.
template <typename Block>
HWY_INLINE float dot_blocks(const uint8_t* blocks, int64_t count, const int16_t* x,
                            const float* scales, VF sum0) {
  const DF df;
  VF sum1 = hn::Zero(df);
  int64_t b = 0;
  for (; b + 2 <= count; b += 2) {
    const uint8_t* block = blocks + b * int64_t{sizeof(Block)};
    sum0 = hn::MulAdd(dot_block<Block>(block, x + b * kBlockWeights), hn::Set(df, scales[b]), sum0);
    sum1 = hn::MulAdd(dot_block<Block>(block + sizeof(Block), x + (b + 1) * kBlockWeights),
                      hn::Set(df, scales[b + 1]), sum1);
  }
  if (b < count) {
    const uint8_t* block = blocks + b * int64_t{sizeof(Block)};
    sum0 = hn::MulAdd(dot_block<Block>(block, x + b * kBlockWeights), hn::Set(df, scales[b]), sum0);
  }
  return hn::GetLane(hn::SumOfLanes(df, hn::Add(sum0, sum1)));
}

template <typename Block>
void multiply_blocks(const Product& product, const MatvecInput& input, int64_t begin, int64_t end) {
  const Matrix& w = *product.w;
  const int64_t row_bytes = w.row_bytes();
  const int64_t num_blocks = input.num_cols() / kBlockWeights;
  ConstantScratch scratch = {};
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < input.num_x(); ++i) {
      float sum = 0.0f;
      for (int64_t start = 0; start < num_blocks; start += kSegment) {
        const int64_t count = std::min(kSegment, num_blocks - start);
        const uint8_t* blocks = w.data + r * row_bytes + start * int64_t{sizeof(Block)};
        copy_constants<Block>(blocks, count, scratch.halves);
        const VF constant = convert_constants<Block>(scratch.halves, count, input.scales(i) + start,
                                                     input.sums(i) + start, scratch.scales);
        sum += dot_blocks<Block>(blocks, count, input.q(i) + start * kBlockWeights, scratch.scales,
                                 constant);
      }
      product.y[i * w.num_rows + r] = sum;
    }
  }
}

// Groups 2 k and 2 k + 1 (32 weights) of a half superblock; scales are those two groups'.
template <int kIdx>
HWY_INLINE VF dot_q6k_32(const uint8_t* ql, const uint8_t* qh, const int16_t* x,
                         const float* scales) {
  const DI16 d;
  const DF df;
  VF sum = hn::Zero(df);
  for (size_t group = 0; group < 2; ++group) {
    IntDot dot = {hn::Zero(DI32()), hn::Zero(DI32())};
    for (size_t i = 16 * group; i < 16 * group + 16; i += hn::Lanes(d)) {
      const auto low_byte = hn::PromoteTo(d, hn::LoadU(DU8(), ql + kIdx % 2 * 32 + i));
      const auto low = hn::And(hn::ShiftRight<kIdx / 2 * 4>(low_byte), hn::Set(d, 15));
      const auto high_byte = hn::PromoteTo(d, hn::LoadU(DU8(), qh + i));
      const auto high = hn::And(hn::ShiftRight<2 * kIdx>(high_byte), hn::Set(d, 3));
      const auto q = hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(d, 32));
      dot.add(q, hn::LoadU(d, x + i));
    }
    sum = hn::MulAdd(dot.value(), hn::Set(df, scales[group]), sum);
  }
  return sum;
}

float dot_q6k(const uint8_t* row, const MatvecInput& input, int64_t x_idx) {
  const DF df;
  VF sum = hn::Zero(df);
  for (int64_t col = 0; col < input.num_cols(); col += kSuperBlockWeights) {
    const uint8_t* block = row + col / kSuperBlockWeights * int64_t{sizeof(BlockQ6_K)};
    const auto* scales = reinterpret_cast<const int8_t*>(block + offsetof(BlockQ6_K, scale));
    uint16_t half;
    std::memcpy(&half, block + offsetof(BlockQ6_K, d), 2);
    const VF d = hn::Set(df, f16_to_f32(half));
    alignas(64) float group_scales[16];
    for (size_t i = 0; i < 16; i += hn::Lanes(df)) {
      const auto scale = hn::PromoteTo(DI32(), hn::LoadU(hn::Rebind<int8_t, DI32>(), scales + i));
      hn::Store(hn::Mul(hn::ConvertTo(df, scale), d), df, group_scales + i);
    }
    for (int64_t part = 0; part < 2; ++part) {
      const uint8_t* ql = block + part * 64;
      const uint8_t* qh = block + offsetof(BlockQ6_K, qh) + part * 32;
      const int16_t* x = input.q(x_idx) + col + part * 128;
      const float* x_scales = input.scales(x_idx) + (col + part * 128) / kBlockWeights;
      const float* s = group_scales + part * 8;
      sum = hn::MulAdd(dot_q6k_32<0>(ql, qh, x, s), hn::Set(df, x_scales[0]), sum);
      sum = hn::MulAdd(dot_q6k_32<1>(ql, qh, x + 32, s + 2), hn::Set(df, x_scales[1]), sum);
      sum = hn::MulAdd(dot_q6k_32<2>(ql, qh, x + 64, s + 4), hn::Set(df, x_scales[2]), sum);
      sum = hn::MulAdd(dot_q6k_32<3>(ql, qh, x + 96, s + 6), hn::Set(df, x_scales[3]), sum);
    }
  }
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

// Group kGroup (32 weights) of a Q4_K or Q5_K block.
template <typename Block, int kGroup>
HWY_INLINE VF dot_k_group(const uint8_t* block, const int16_t* x) {
  const DI16 d;
  IntDot dot = {hn::Zero(DI32()), hn::Zero(DI32())};
  for (size_t i = 0; i < 32; i += hn::Lanes(d)) {
    const uint8_t* from = block + offsetof(Block, q) + kGroup / 2 * 32 + i;
    const auto bytes = hn::PromoteTo(d, hn::LoadU(DU8(), from));
    auto q = hn::And(hn::ShiftRight<kGroup % 2 * 4>(bytes), hn::Set(d, 15));
    if constexpr (sizeof(Block) == sizeof(BlockQ5_K)) {
      const auto high = hn::PromoteTo(d, hn::LoadU(DU8(), block + offsetof(BlockQ5_K, qh) + i));
      q = hn::Or(q, hn::ShiftLeft<4>(hn::And(hn::ShiftRight<kGroup>(high), hn::Set(d, 1))));
    }
    dot.add(q, hn::LoadU(d, x + i));
  }
  return dot.value();
}

// The groups from kGroup on; adds what the mins take away to `mins`.
template <typename Block, int kGroup = 0>
HWY_INLINE VF dot_k_groups(const uint8_t* block, const GroupScales& groups, const int16_t* x,
                           const float* x_scales, const float* x_sums, VF sum, float* mins) {
  if constexpr (kGroup == 8) {
    return sum;
  } else {
    const float scale = static_cast<float>(groups.scales >> 8 * kGroup & 0xff) * x_scales[kGroup];
    *mins += static_cast<float>(groups.mins >> 8 * kGroup & 0xff) * x_sums[kGroup];
    const VF dot = dot_k_group<Block, kGroup>(block, x + 32 * kGroup);
    return dot_k_groups<Block, kGroup + 1>(block, groups, x, x_scales, x_sums,
                                           hn::MulAdd(dot, hn::Set(DF(), scale), sum), mins);
  }
}

template <typename Block>
float dot_k(const uint8_t* row, const MatvecInput& input, int64_t x_idx) {
  const DF df;
  VF sum = hn::Zero(df);
  float min_sum = 0.0f;
  for (int64_t col = 0; col < input.num_cols(); col += kSuperBlockWeights) {
    const uint8_t* block = row + col / kSuperBlockWeights * int64_t{sizeof(Block)};
    uint16_t halves[2];
    std::memcpy(halves, block, 4);
    float mins = 0.0f;
    const VF dot =
        dot_k_groups<Block>(block, unpack_group_scales(block + offsetof(Block, packed)),
                            input.q(x_idx) + col, input.scales(x_idx) + col / kBlockWeights,
                            input.sums(x_idx) + col / kBlockWeights, hn::Zero(df), &mins);
    sum = hn::MulAdd(dot, hn::Set(df, f16_to_f32(halves[0])), sum);
    min_sum += f16_to_f32(halves[1]) * mins;
  }
  return hn::GetLane(hn::SumOfLanes(df, sum)) - min_sum;
}

template <GgmlType kType>
HWY_INLINE VF load_weights(const uint8_t* row, int64_t col) {
  const DF df;
  if constexpr (kType == GgmlType::kF32) {
    return hn::LoadU(df, reinterpret_cast<const float*>(row) + col);
  } else {
    const auto raw =
        hn::LoadU(hn::Rebind<uint16_t, DF>(), reinterpret_cast<const uint16_t*>(row) + col);
    if constexpr (kType == GgmlType::kF16) {
      return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), raw));
    } else {
      return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(hn::Rebind<uint32_t, DF>(), raw)));
    }
  }
}

template <GgmlType kType>
float dot_plain(const uint8_t* row, const MatvecInput& input, int64_t x_idx) {
  const DF df;
  const float* x = input.x(x_idx);
  const auto step = static_cast<int64_t>(hn::Lanes(df));
  VF sum0 = hn::Zero(df);
  VF sum1 = hn::Zero(df);
  int64_t col = 0;
  for (; col + 2 * step <= input.num_cols(); col += 2 * step) {
    sum0 = hn::MulAdd(load_weights<kType>(row, col), hn::LoadU(df, x + col), sum0);
    sum1 = hn::MulAdd(load_weights<kType>(row, col + step), hn::LoadU(df, x + col + step), sum1);
  }
  constexpr DType kDType = kType == GgmlType::kF32   ? DType::kF32
                           : kType == GgmlType::kF16 ? DType::kF16
                                                     : DType::kBF16;
  float tail = 0.0f;
  for (; col < input.num_cols(); ++col) tail += load_element(row, kDType, col) * x[col];
  return tail + hn::GetLane(hn::SumOfLanes(df, hn::Add(sum0, sum1)));
}

using RowDot = float (*)(const uint8_t* row, const MatvecInput& input, int64_t x_idx);

HWY_INLINE void multiply_each(RowDot dot, const Product& product, const MatvecInput& input,
                              int64_t begin, int64_t end) {
  const Matrix& w = *product.w;
  const int64_t row_bytes = w.row_bytes();
  for (int64_t r = begin; r < end; ++r) {
    const uint8_t* row = w.data + r * row_bytes;
    for (int64_t i = 0; i < input.num_x(); ++i) product.y[i * w.num_rows + r] = dot(row, input, i);
  }
}

void multiply_rows(const Product& product, const MatvecInput& input, int64_t begin, int64_t end) {
  switch (product.w->type) {
    case GgmlType::kF32:
      return multiply_each(dot_plain<GgmlType::kF32>, product, input, begin, end);
    case GgmlType::kF16:
      return multiply_each(dot_plain<GgmlType::kF16>, product, input, begin, end);
    case GgmlType::kBF16:
      return multiply_each(dot_plain<GgmlType::kBF16>, product, input, begin, end);
    case GgmlType::kQ4_0:
      return multiply_blocks<BlockQ4_0>(product, input, begin, end);
    case GgmlType::kQ4_1:
      return multiply_blocks<BlockQ4_1>(product, input, begin, end);
    case GgmlType::kQ8_0:
      return multiply_blocks<BlockQ8_0>(product, input, begin, end);
    case GgmlType::kQ4_K:
      return multiply_each(dot_k<BlockQ4_K>, product, input, begin, end);
    case GgmlType::kQ5_K:
      return multiply_each(dot_k<BlockQ5_K>, product, input, begin, end);
    case GgmlType::kQ6_K:
      return multiply_each(dot_q6k, product, input, begin, end);
  }
}

void quantize_x(const float* x, int64_t num_cols, int16_t* q, float* scales, float* sums) {
  const DF df;
  const DI32 di32;
  const hn::Rebind<int16_t, DI32> di16;
  const size_t step = hn::Lanes(df);
  for (int64_t block = 0; block < num_cols / kBlockWeights; ++block) {
    const float* from = x + block * kBlockWeights;
    int16_t* to = q + block * kBlockWeights;
    VF largest = hn::Zero(df);
    for (size_t i = 0; i < kBlockWeights; i += step) {
      largest = hn::Max(largest, hn::Abs(hn::LoadU(df, from + i)));
    }
    const float max = hn::GetLane(hn::MaxOfLanes(df, largest));
    // Below 1e-34 the inverse overflows; such a block counts as zeros.
    const float inverse = max >= 1e-34f ? 32767.0f / max : 0.0f;
    VI32 sum = hn::Zero(di32);
    for (size_t i = 0; i < kBlockWeights; i += step) {
      const VI32 value = hn::NearestInt(hn::Mul(hn::LoadU(df, from + i), hn::Set(df, inverse)));
      const auto narrow = hn::DemoteTo(di16, value);
      hn::StoreU(narrow, di16, to + i);
      sum = hn::Add(sum, hn::PromoteTo(di32, narrow));
    }
    const float scale = max / 32767.0f;
    scales[block] = scale;
    sums[block] = scale * static_cast<float>(hn::GetLane(hn::SumOfLanes(di32, sum)));
  }
}

}  // namespace longdecode::runner::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longdecode::runner {

HWY_EXPORT(multiply_rows);
HWY_EXPORT(quantize_x);

void multiply_rows_portable(const Product& product, const MatvecInput& input, int64_t begin,
                            int64_t end) {
  HWY_DYNAMIC_DISPATCH(multiply_rows)(product, input, begin, end);
}

void pack_int16(const float* x, int64_t num_cols, int16_t* q, float* scales, float* sums) {
  HWY_DYNAMIC_DISPATCH(quantize_x)(x, num_cols, q, scales, sums);
}

}  // namespace longdecode::runner
#endif  // HWY_ONCE
