#include "runner/linear/matvec.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/float_convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runner/linear/matvec.cc"
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

// What a block type adds to the plain scaled dot product: the share of the sum of x.
template <typename Block>
constexpr int32_t kConstants = 1;  // fp16 constants at the start of a block
template <>
constexpr int32_t kConstants<BlockQ4_1> = 2;

// Blocks whose constants are converted at once; the fp32 values stay in the first-level cache.
constexpr int64_t kSegment = 64;

// scales[b] = d_b * scale of x's block b, for up to kSegment blocks; returns the part of the dot
// product that needs only the block constants and the sums of x.
template <typename Block>
HWY_INLINE float prepare_constants(const uint8_t* blocks, int64_t count, const float* x_scales,
                                   const float* x_sums, float* scales) {
  const DF df;
  const hn::Rebind<hwy::float16_t, DF> df16;
  const hn::Rebind<uint16_t, DF> du16;
  alignas(64) uint16_t halves[kConstants<Block>][kSegment + kMaxFloatLanes];
  for (int64_t b = 0; b < count; ++b) {
    const uint8_t* block = blocks + b * int64_t{sizeof(Block)};
    for (int32_t c = 0; c < kConstants<Block>; ++c) std::memcpy(&halves[c][b], block + 2 * c, 2);
  }
  const auto step = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t b = count; b < (count + step - 1) / step * step; ++b) {
    for (int32_t c = 0; c < kConstants<Block>; ++c) halves[c][b] = 0;
  }
  VF sum = hn::Zero(df);
  for (int64_t b = 0; b < count; b += step) {
    const auto half = [&](int32_t c) HWY_ATTR {
      return hn::PromoteTo(df, hn::BitCast(df16, hn::Load(du16, halves[c] + b)));
    };
    const VF d = half(0);
    hn::Store(hn::Mul(d, hn::LoadU(df, x_scales + b)), df, scales + b);
    if constexpr (kConstants<Block> == 2) {
      sum = hn::MulAdd(half(1), hn::LoadU(df, x_sums + b), sum);
    } else if constexpr (sizeof(Block) == sizeof(BlockQ4_0)) {
      sum = hn::MulAdd(hn::Mul(d, hn::Set(df, -8.0f)), hn::LoadU(df, x_sums + b), sum);
    }
  }
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

template <typename Block>
float dot_blocks(const uint8_t* row, const MatvecInput& input, int64_t x_idx) {
  const DF df;
  const int16_t* x = input.q(x_idx);
  const int64_t num_blocks = input.num_cols() / kBlockWeights;
  alignas(64) float scales[kSegment + kMaxFloatLanes];
  float total = 0.0f;
  VF sum0 = hn::Zero(df);
  VF sum1 = hn::Zero(df);
  const auto dot = [&](int64_t b) HWY_ATTR {
    const uint8_t* q = row + b * int64_t{sizeof(Block)} + offsetof(Block, q);
    if constexpr (sizeof(Block) == sizeof(BlockQ8_0)) {
      return dot_bytes(reinterpret_cast<const int8_t*>(q), x + b * kBlockWeights);
    } else {
      return dot_nibbles(q, x + b * kBlockWeights);
    }
  };
  for (int64_t start = 0; start < num_blocks; start += kSegment) {
    const int64_t count = std::min(kSegment, num_blocks - start);
    total +=
        prepare_constants<Block>(row + start * int64_t{sizeof(Block)}, count,
                                 input.scales(x_idx) + start, input.sums(x_idx) + start, scales);
    int64_t b = 0;
    for (; b + 2 <= count; b += 2) {
      sum0 = hn::MulAdd(dot(start + b), hn::Set(df, scales[b]), sum0);
      sum1 = hn::MulAdd(dot(start + b + 1), hn::Set(df, scales[b + 1]), sum1);
    }
    if (b < count) sum0 = hn::MulAdd(dot(start + b), hn::Set(df, scales[b]), sum0);
  }
  return total + hn::GetLane(hn::SumOfLanes(df, hn::Add(sum0, sum1)));
}

float dot_q6k(const uint8_t* row, const MatvecInput& input, int64_t x_idx) {
  const DF df;
  const DI16 d16;
  const float* x_scales = input.scales(x_idx);
  VF sum = hn::Zero(df);
  for (int64_t col = 0; col < input.num_cols(); col += kSuperBlockWeights) {
    const uint8_t* block = row + col / kSuperBlockWeights * int64_t{sizeof(BlockQ6_K)};
    const auto* scales = reinterpret_cast<const int8_t*>(block + offsetof(BlockQ6_K, scale));
    uint16_t half;
    std::memcpy(&half, block + offsetof(BlockQ6_K, d), 2);
    const float d = f16_to_f32(half);
    for (int32_t group = 0; group < 16; ++group) {
      const int32_t k = group % 8 / 2;
      const uint8_t* ql = block + group / 8 * 64 + k % 2 * 32 + group % 2 * 16;
      const uint8_t* qh = block + offsetof(BlockQ6_K, qh) + group / 8 * 32 + group % 2 * 16;
      const int16_t* x = input.q(x_idx) + col + group * 16;
      IntDot dot = {hn::Zero(DI32()), hn::Zero(DI32())};
      for (size_t i = 0; i < 16; i += hn::Lanes(d16)) {
        const auto low_byte = hn::PromoteTo(d16, hn::LoadU(DU8(), ql + i));
        const auto low = hn::And(hn::ShiftRightSame(low_byte, k / 2 * 4), hn::Set(d16, 15));
        const auto high_byte = hn::PromoteTo(d16, hn::LoadU(DU8(), qh + i));
        const auto high = hn::And(hn::ShiftRightSame(high_byte, 2 * k), hn::Set(d16, 3));
        const auto q = hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), hn::Set(d16, 32));
        dot.add(q, hn::LoadU(d16, x + i));
      }
      const float x_scale = x_scales[(col + group * 16) / kBlockWeights];
      const float scale = d * static_cast<float>(scales[group]) * x_scale;
      sum = hn::MulAdd(dot.value(), hn::Set(df, scale), sum);
    }
  }
  return hn::GetLane(hn::SumOfLanes(df, sum));
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

RowDot row_dot(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return dot_plain<GgmlType::kF32>;
    case GgmlType::kF16:
      return dot_plain<GgmlType::kF16>;
    case GgmlType::kBF16:
      return dot_plain<GgmlType::kBF16>;
    case GgmlType::kQ4_0:
      return dot_blocks<BlockQ4_0>;
    case GgmlType::kQ4_1:
      return dot_blocks<BlockQ4_1>;
    case GgmlType::kQ8_0:
      return dot_blocks<BlockQ8_0>;
    case GgmlType::kQ6_K:
      return dot_q6k;
  }
  return nullptr;
}

void multiply_rows(const Product& product, const MatvecInput& input, int64_t begin, int64_t end) {
  const Matrix& w = *product.w;
  const RowDot dot = row_dot(w.type);
  for (int64_t r = begin; r < end; ++r) {
    const uint8_t* row = w.row(r);
    for (int64_t i = 0; i < input.num_x(); ++i) product.y[i * w.num_rows + r] = dot(row, input, i);
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

namespace {
// One core reads this much in about the time that a parallel region takes.
constexpr int64_t kMinParallelBytes = 64 << 10;
}  // namespace

HWY_EXPORT(multiply_rows);
HWY_EXPORT(quantize_x);

void MatvecInput::set(const float* x, int64_t num_x, int64_t num_cols, bool quantize) {
  x_ = x;
  num_x_ = num_x;
  num_cols_ = num_cols;
  if (!quantize) return;
  // Past the last block there are zeros, for vectors that reach beyond it.
  stride_ = num_cols / kBlockWeights + kMaxFloatLanes;
  q_.resize(static_cast<size_t>(num_x * num_cols));
  scales_.assign(static_cast<size_t>(num_x * stride_), 0.0f);
  sums_.assign(static_cast<size_t>(num_x * stride_), 0.0f);
  for (int64_t i = 0; i < num_x; ++i) {
    HWY_DYNAMIC_DISPATCH(quantize_x)
    (x + i * num_cols, num_cols, q_.data() + i * num_cols, scales_.data() + i * stride_,
     sums_.data() + i * stride_);
  }
}

void matvec(std::span<const Product> products, const MatvecInput& input, int32_t num_threads) {
  int64_t num_rows = 0;
  int64_t num_bytes = 0;
  for (const Product& product : products) {
    num_rows += product.w->num_rows;
    num_bytes += product.w->num_rows * product.w->row_bytes();
  }
#pragma omp parallel num_threads(num_threads) if (num_bytes > kMinParallelBytes)
  {
    // Each thread reads one contiguous stretch of the products' rows laid end to end.
    const int64_t thread = omp_get_thread_num();
    const int64_t threads = omp_get_num_threads();
    const int64_t begin = num_rows * thread / threads;
    const int64_t end = num_rows * (thread + 1) / threads;
    int64_t first = 0;
    for (const Product& product : products) {
      const int64_t count = product.w->num_rows;
      HWY_DYNAMIC_DISPATCH(multiply_rows)
      (product, input, std::clamp(begin - first, int64_t{0}, count),
       std::clamp(end - first, int64_t{0}, count));
      first += count;
    }
  }
}

}  // namespace longdecode::runner
#endif  // HWY_ONCE
