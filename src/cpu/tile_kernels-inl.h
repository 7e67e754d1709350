// The inner loops of tile_attention.cc, compiled once per instruction set. A dot product or an
// accumulation block can be replaced for one instruction set (bf16 dot, AMX) without touching the
// loops around them.

#if defined(LONGDECODE_CPU_TILE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGDECODE_CPU_TILE_KERNELS_INL_H_
#undef LONGDECODE_CPU_TILE_KERNELS_INL_H_
#else
#define LONGDECODE_CPU_TILE_KERNELS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longdecode::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::ScalableTag<uint32_t>;
using VecF32 = hn::Vec<F32>;

// Scalable vectors (SVE, RVV) are disabled in CMake, so lane counts are constants: 16 (AVX-512), 8
// (AVX2), 4, or 1 (scalar).
constexpr size_t kLanes = hn::MaxLanes(F32());
// Channels are handled in pairs of vectors. Every dim is a multiple of 16, so a row ends on a
// whole pair, or on one vector where a vector has 16 lanes (head_dim 80 with AVX-512).
constexpr size_t kPair = 2 * kLanes;
constexpr bool kHasTail = kLanes == 16;
// 4 x 4 accumulators (and as many operands) fit 32 vector registers; 16 registers hold half.
constexpr int kRowBlock = (HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON) ? 4 : 2;
constexpr int kTokenBlock = 4;

// Rows of fp32: a pair is channels [c, c + kLanes) and [c + kLanes, c + 2 kLanes).
struct SourceF32 {
  static constexpr size_t kElementBytes = 4;
  static constexpr bool kSplitPairs = false;
  static HWY_INLINE void load(const void* row, size_t channel, VecF32& v0, VecF32& v1) {
    const float* from = static_cast<const float*>(row) + channel;
    v0 = hn::LoadU(F32(), from);
    v1 = hn::LoadU(F32(), from + kLanes);
  }
  static HWY_INLINE void load_tail(const void* row, size_t channel, VecF32& v0, VecF32& v1) {
    v0 = hn::LoadU(F32(), static_cast<const float*>(row) + channel);
    v1 = hn::Zero(F32());
  }
};

struct SourceF16 {
  static constexpr size_t kElementBytes = 2;
  static constexpr bool kSplitPairs = false;
  static HWY_INLINE VecF32 promote(const void* row, size_t channel) {
    const hn::Rebind<hwy::float16_t, F32> df16;
    return hn::PromoteTo(F32(), hn::LoadU(df16, static_cast<const hwy::float16_t*>(row) + channel));
  }
  static HWY_INLINE void load(const void* row, size_t channel, VecF32& v0, VecF32& v1) {
    v0 = promote(row, channel);
    v1 = promote(row, channel + kLanes);
  }
  static HWY_INLINE void load_tail(const void* row, size_t channel, VecF32& v0, VecF32& v1) {
    v0 = promote(row, channel);
    v1 = hn::Zero(F32());
  }
};

// Rows of bf16 are read as 32-bit pairs: the even channels are the low halves shifted up, the odd
// channels the high halves masked. One operation per vector; widening in channel order takes two,
// one of them on the shuffle port that the reductions need.
struct SourceBf16 {
  static constexpr size_t kElementBytes = 2;
  static constexpr bool kSplitPairs = true;
  static HWY_INLINE void split(hn::Vec<U32> pairs, VecF32& even, VecF32& odd) {
    even = hn::BitCast(F32(), hn::ShiftLeft<16>(pairs));
    odd = hn::BitCast(F32(), hn::And(pairs, hn::Set(U32(), 0xFFFF0000u)));
  }
  static HWY_INLINE void load(const void* row, size_t channel, VecF32& v0, VecF32& v1) {
    const uint16_t* from = static_cast<const uint16_t*>(row) + channel;
    split(hn::LoadU(U32(), reinterpret_cast<const uint32_t*>(from)), v0, v1);
  }
  static HWY_INLINE void load_tail(const void* row, size_t channel, VecF32& v0, VecF32& v1) {
#if HWY_TARGET <= HWY_AVX3
    const uint16_t* from = static_cast<const uint16_t*>(row) + channel;
    const hn::Half<U32> half;
    const auto pairs = hn::LoadU(half, reinterpret_cast<const uint32_t*>(from));
    split(hn::ZeroExtendVector(U32(), pairs), v0, v1);
#else
    load(row, channel, v0, v1);
#endif
  }
};

// out[i] = the lanes of v[i] combined by op, four vectors at a time: a transposing reduction.
template <class Op>
HWY_INLINE void reduce_lanes(const VecF32 (&v)[4], const Op& op, float* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(v[i]);
  (void)op;
#else
  const F32 d;
  const hn::RepartitionToWide<F32> d64;
  const VecF32 s01 = op(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const VecF32 s23 = op(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto w01 = hn::BitCast(d64, s01);
  const auto w23 = hn::BitCast(d64, s23);
  const VecF32 s = op(hn::BitCast(d, hn::InterleaveLower(d64, w01, w23)),
                      hn::BitCast(d, hn::InterleaveUpper(d64, w01, w23)));
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<F32> d8;
  const auto s8 = op(hn::LowerHalf(d8, s), hn::UpperHalf(d8, s));
  const hn::Half<decltype(d8)> d4;
  hn::StoreU(op(hn::LowerHalf(d4, s8), hn::UpperHalf(d4, s8)), d4, out);
#elif HWY_TARGET <= HWY_AVX2
  const hn::Half<F32> d4;
  hn::StoreU(op(hn::LowerHalf(d4, s), hn::UpperHalf(d4, s)), d4, out);
#else
  hn::StoreU(s, d, out);
#endif
#endif
}

// sums[i] = the sum of the lanes of v[i].
HWY_INLINE void store_sums(const VecF32 (&v)[4], float* HWY_RESTRICT sums) {
  reduce_lanes(
      v, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, sums);
}

// out[i * out_stride + j] = rows[j][i] for 4 rows and kLanes (at least 4) columns.
HWY_INLINE void transpose_block(const float* const (&rows)[4], size_t column,
                                float* HWY_RESTRICT out, size_t out_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t j = 0; j < 4; ++j) out[j] = rows[j][column];
  (void)out_stride;
#else
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  for (size_t i = 0; i < kLanes; i += 4) {
    const auto r0 = hn::LoadU(d, rows[0] + column + i);
    const auto r1 = hn::LoadU(d, rows[1] + column + i);
    const auto r2 = hn::LoadU(d, rows[2] + column + i);
    const auto r3 = hn::LoadU(d, rows[3] + column + i);
    const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
    float* to = out + i * out_stride;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, to);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, to + out_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, to + 2 * out_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, to + 3 * out_stride);
  }
#endif
}

// scores[r * stride + j] = q row r . key row j for kRows rows and kTokenBlock tokens, unscaled.
template <class Source, int kRows>
HWY_INLINE void dot_block(const float* HWY_RESTRICT q, size_t q_stride, const void* const* k_rows,
                          size_t dim, float* HWY_RESTRICT scores, size_t stride) {
  const F32 d;
  VecF32 acc[kRows][kTokenBlock];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kTokenBlock; ++j) acc[r][j] = hn::Zero(d);
  }
  const auto multiply = [&](size_t channel, const VecF32(&k0)[kTokenBlock],
                            const VecF32(&k1)[kTokenBlock]) HWY_ATTR {
    for (int r = 0; r < kRows; ++r) {
      const VecF32 q0 = hn::Load(d, q + r * q_stride + channel);
      for (int j = 0; j < kTokenBlock; ++j) acc[r][j] = hn::MulAdd(q0, k0[j], acc[r][j]);
    }
    for (int r = 0; r < kRows; ++r) {
      const VecF32 q1 = hn::Load(d, q + r * q_stride + channel + kLanes);
      for (int j = 0; j < kTokenBlock; ++j) acc[r][j] = hn::MulAdd(q1, k1[j], acc[r][j]);
    }
  };
  VecF32 k0[kTokenBlock];
  VecF32 k1[kTokenBlock];
  size_t channel = 0;
  for (; channel + kPair <= dim; channel += kPair) {
    for (int j = 0; j < kTokenBlock; ++j) Source::load(k_rows[j], channel, k0[j], k1[j]);
    multiply(channel, k0, k1);
  }
  if (kHasTail && channel < dim) {
    for (int j = 0; j < kTokenBlock; ++j) Source::load_tail(k_rows[j], channel, k0[j], k1[j]);
    multiply(channel, k0, k1);
  }
  for (int r = 0; r < kRows; ++r) store_sums(acc[r], scores + r * stride);
}

// o[r] = o[r] * rescale[r] + sum over tokens of p[r][token] * v_rows[token], for kRows rows and the
// kPairs pairs of vectors from `channel` on. Calls prefetch() for every kTokenBlock tokens.
template <class Source, int kRows, int kPairs, bool kTail, class Prefetch>
HWY_INLINE void accumulate_block(const float* HWY_RESTRICT p, size_t p_stride,
                                 const void* const* v_rows, size_t num_tokens, size_t channel,
                                 const float* HWY_RESTRICT rescale, float* HWY_RESTRICT o,
                                 size_t o_stride, const Prefetch& prefetch) {
  const F32 d;
  VecF32 acc[kRows][2 * kPairs];
  for (int r = 0; r < kRows; ++r) {
    const VecF32 factor = hn::Set(d, rescale[r]);
    for (int i = 0; i < 2 * kPairs; ++i) {
      acc[r][i] = hn::Mul(hn::Load(d, o + r * o_stride + channel + i * kLanes), factor);
    }
  }
  for (size_t j = 0; j < num_tokens; ++j) {
    if (j % kTokenBlock == 0) prefetch();
    VecF32 v[2 * kPairs];
    for (int i = 0; i < kPairs; ++i) {
      if constexpr (kTail) {
        Source::load_tail(v_rows[j], channel + i * kPair, v[2 * i], v[2 * i + 1]);
      } else {
        Source::load(v_rows[j], channel + i * kPair, v[2 * i], v[2 * i + 1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const VecF32 weight = hn::Set(d, p[r * p_stride + j]);
      for (int i = 0; i < 2 * kPairs; ++i) acc[r][i] = hn::MulAdd(weight, v[i], acc[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < 2 * kPairs; ++i) {
      hn::Store(acc[r][i], d, o + r * o_stride + channel + i * kLanes);
    }
  }
}

// scores[0, count) scaled and capped in place; lanes up to the next vector become -infinity.
// Returns their maximum.
HWY_INLINE float scale_scores(float softmax_scale, float soft_cap, size_t count,
                              float* HWY_RESTRICT scores) {
  const F32 d;
  const VecF32 lowest = hn::Set(d, -HUGE_VALF);
  const VecF32 scale = hn::Set(d, softmax_scale);
  VecF32 max = lowest;
  for (size_t j = 0; j < count; j += kLanes) {
    VecF32 s = hn::Mul(hn::Load(d, scores + j), scale);
    if (soft_cap > 0.0f) {
      const VecF32 capped =
          hn::Mul(hn::Set(d, soft_cap), hn::Tanh(d, hn::Div(s, hn::Set(d, soft_cap))));
      s = hn::IfThenElse(hn::Eq(s, s), capped, s);  // NaN stays NaN
    }
    if (j + kLanes > count) s = hn::IfThenElse(hn::FirstN(d, count - j), s, lowest);
    max = hn::Max(max, s);
    hn::Store(s, d, scores + j);
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

// e^x for x <= 0 to about 1 ulp; 0 below the smallest normal number, -infinity included; NaN stays
// NaN. hn::Exp takes nearly twice the operations (any sign, subnormal results) and turns NaN into
// 0.
HWY_INLINE VecF32 exp_nonpositive(VecF32 x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 + 127 rounds to the integer n and leaves
  // n + 127, the exponent bits of 2^n, in the low bits of the sum.
  const VecF32 magic = hn::Set(d, 12583039.0f);
  const VecF32 shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const VecF32 n = hn::Sub(shifted, magic);
  VecF32 r = hn::NegMulAdd(n, hn::Set(d, 0.693145752f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  // (e^r - 1 - r) / r^2, interpolated at Chebyshev nodes: relative error of e^r 1.1e-8.
  VecF32 p = hn::MulAdd(hn::Set(d, 0.00139261840f), r, hn::Set(d, 0.00836317893f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0416665561f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665763f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  // A product, not a sum of exponents: that would make numbers of NaNs.
  p = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3f)), p);
}

// scores[0, count) -> exp(scores - reference) in place; returns their sum. reference: at least
// every score.
HWY_INLINE float exponentiate(float reference, size_t count, float* HWY_RESTRICT scores) {
  const F32 d;
  const VecF32 shift = hn::Set(d, reference);
  VecF32 sum = hn::Zero(d);
  for (size_t j = 0; j < count; j += kLanes) {
    const VecF32 p = exp_nonpositive(hn::Sub(hn::Load(d, scores + j), shift));
    sum = hn::Add(sum, p);
    hn::Store(p, d, scores + j);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace longdecode::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
