// fold_rows: see ffd_scan.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/ffd_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ffd_fold.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/tile_kernels-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longdecode::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

// Largest |f_c| below which a row counts as zero: 127 / it would come near the end of fp32.
constexpr float kMinFold = 1e-30f;
// Far beyond any sum of 3 * 127 * 256.
constexpr double kNever = 1 << 30;

enum class MarginKind { kNone, kSigmas, kCertified };

// Rows folded together: their sums over channels are reduced together.
constexpr int32_t kRows = 4;

// What the margin and the threshold need of each row, over its channels.
struct FoldSums {
  float zero_dot[kRows] = {};      // sum q_c z_c
  float n_sum[kRows] = {};         // sum n_c
  float squares[kRows] = {};       // kSigmas: sum f_c^2
  float lengths[kRows] = {};       // kCertified: sum |f_c|
  float zero_lengths[kRows] = {};  // kCertified: sum |q_c z_c|
  float errors[kRows] = {};        // kCertified: sum |f_c - unit n_c|
  float unit[kRows] = {};          // max |f_c| / 127, or 0
  float inverse_unit[kRows] = {};  // 127 / max |f_c|, or 0
};

// q[i]: row i, or one before it where there are fewer rows. f_c into `folded`, and the sums.
template <MarginKind kMargin>
HWY_INLINE void FoldSteps(const float* const (&q)[kRows], const PageGrid& grid, int32_t dim,
                          FoldSums& sums, float* HWY_RESTRICT folded) {
  const FloatTag df;
  FloatVec max[kRows], zero_dot[kRows], squares[kRows], lengths[kRows], zero_lengths[kRows];
  for (int32_t r = 0; r < kRows; ++r) {
    max[r] = zero_dot[r] = squares[r] = lengths[r] = zero_lengths[r] = hn::Zero(df);
  }
  for (int32_t c = 0; c < dim; c += static_cast<int32_t>(hn::Lanes(df))) {
    const FloatVec zero = hn::Load(df, grid.zero + c);
    const FloatVec step = hn::Load(df, grid.step + c);
    for (int32_t r = 0; r < kRows; ++r) {
      const FloatVec qc = hn::Load(df, q[r] + c);
      const FloatVec f = hn::Mul(qc, step);
      zero_dot[r] = hn::MulAdd(qc, zero, zero_dot[r]);
      max[r] = hn::Max(max[r], hn::Abs(f));
      hn::Store(f, df, folded + r * dim + c);
      if constexpr (kMargin == MarginKind::kSigmas) squares[r] = hn::MulAdd(f, f, squares[r]);
      if constexpr (kMargin == MarginKind::kCertified) {
        lengths[r] = hn::Add(lengths[r], hn::Abs(f));
        zero_lengths[r] = hn::Add(zero_lengths[r], hn::Abs(hn::Mul(qc, zero)));
      }
    }
  }
  float largest[kRows];
  reduce_lanes(
      max, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }, largest);
  store_sums(zero_dot, sums.zero_dot);
  if constexpr (kMargin == MarginKind::kSigmas) store_sums(squares, sums.squares);
  if constexpr (kMargin == MarginKind::kCertified) {
    store_sums(lengths, sums.lengths);
    store_sums(zero_lengths, sums.zero_lengths);
  }
  for (int32_t r = 0; r < kRows; ++r) {
    // Every token of a page whose fold overflows is a candidate: NaN reaches any threshold.
    if (largest[r] > std::numeric_limits<float>::max()) sums.zero_dot[r] = NAN;
    const bool is_zero = !(largest[r] > kMinFold && sums.zero_dot[r] == sums.zero_dot[r]);
    sums.unit[r] = is_zero ? 0.0f : largest[r] * (1.0f / 127.0f);
    sums.inverse_unit[r] = is_zero ? 0.0f : 127.0f / largest[r];
  }
}

// Words of four channels from the low bytes of `n`, each word twice.
HWY_INLINE void StoreWords(hn::Vec<hn::RebindToSigned<FloatTag>> n, int8_t* HWY_RESTRICT to) {
#if HWY_TARGET <= HWY_AVX3
  const hn::RebindToSigned<FloatTag> di;
  const hn::Repartition<int8_t, decltype(di)> d8;
  alignas(64) static constexpr int8_t kLowBytes[16] = {0, 4, 8, 12, 0, 4, 8, 12,
                                                       0, 4, 8, 12, 0, 4, 8, 12};
  alignas(64) static constexpr int32_t kTwice[16] = {0, 0, 4, 4, 8, 8, 12, 12,
                                                     0, 0, 4, 4, 8, 8, 12, 12};
  const auto words = hn::TableLookupBytes(hn::BitCast(d8, n), hn::LoadDup128(d8, kLowBytes));
  const auto twice = hn::TableLookupLanes(hn::BitCast(di, words), hn::SetTableIndices(di, kTwice));
  const hn::Half<decltype(d8)> d32bytes;
  hn::StoreU(hn::LowerHalf(d32bytes, hn::BitCast(d8, twice)), d32bytes, to);
#else
  const hn::RebindToSigned<FloatTag> di;
  alignas(64) int32_t lanes[16];
  hn::Store(n, di, lanes);
  for (size_t i = 0; i < hn::Lanes(di); ++i) {
    int8_t* pair = to + i / 4 * 8 + i % 4;
    pair[0] = pair[4] = static_cast<int8_t>(lanes[i]);
  }
#endif
}

// n_c = round(f_c / unit), in the order of a group. |f_c| / unit is at most 127 and a rounding.
template <MarginKind kMargin>
HWY_INLINE void RoundFolded(const float* HWY_RESTRICT folded, int32_t dim, FoldSums& sums,
                            int32_t num_rows, int8_t* HWY_RESTRICT n) {
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  // Adding it rounds to an integer, which is left in the low bits of the sum.
  const FloatVec magic = hn::Set(df, 0x1.8p23f);
  FloatVec n_sums[kRows], errors[kRows];
  for (int32_t r = 0; r < kRows; ++r) n_sums[r] = errors[r] = hn::Zero(df);
  for (int32_t r = 0; r < num_rows; ++r) {
    const FloatVec unit = hn::Set(df, sums.unit[r]);
    const FloatVec inverse = hn::Set(df, sums.inverse_unit[r]);
    for (int32_t c = 0; c < dim; c += static_cast<int32_t>(hn::Lanes(df))) {
      const FloatVec f = hn::Load(df, folded + r * dim + c);
      const FloatVec shifted = hn::MulAdd(f, inverse, magic);
      const FloatVec rounded = hn::Sub(shifted, magic);
      n_sums[r] = hn::Add(n_sums[r], rounded);
      if constexpr (kMargin == MarginKind::kCertified) {
        errors[r] = hn::Add(errors[r], hn::Abs(hn::NegMulAdd(rounded, unit, f)));
      }
      StoreWords(hn::BitCast(di, shifted), n + int64_t{r} * 2 * dim + 2 * c);
    }
  }
  store_sums(n_sums, sums.n_sum);
  if constexpr (kMargin == MarginKind::kCertified) store_sums(errors, sums.errors);
}

// In units before softmax_scale, like sums.
HWY_INLINE double Margin(const ScanRows& rows, const FoldSums& sums, int32_t r) {
  // Half a step per channel between scan and exact value, 1.5 steps of query rounding, and the
  // fp32 rounding of the sums.
  if (rows.certified) {
    return 0.5 * sums.lengths[r] + 1.5 * sums.errors[r] +
           0x1p-18 * (static_cast<double>(sums.lengths[r]) + sums.zero_lengths[r]);
  }
  return rows.margin_sigmas > 0.0f ? rows.margin_sigmas * std::sqrt(sums.squares[r] / 12.0) : 0.0;
}

HWY_INLINE int32_t IntegerThreshold(const ScanRows& rows, float threshold, const FoldSums& sums,
                                    int32_t r) {
  const double needed = static_cast<double>(threshold) / rows.softmax_scale -
                        Margin(rows, sums, r) - sums.zero_dot[r];
  // Without a unit every n_c is 0 and so is the score above zero_dot.
  const double reach = sums.unit[r] > 0.0f ? needed * sums.inverse_unit[r] + 1.5 * sums.n_sum[r]
                                           : (needed > 0.0 ? kNever : -kNever);
  if (reach >= kNever) return std::numeric_limits<int32_t>::max();
  if (reach > -kNever) return static_cast<int32_t>(std::ceil(reach));
  return std::numeric_limits<int32_t>::min();  // NaN too
}

template <MarginKind kMargin>
void FoldAll(const PageGrid& grid, const ScanRows& rows, FoldedRows& folded) {
  alignas(64) float steps[kRows * kMaxPlaneDim];
  FoldSums sums;
  const int32_t dim = rows.padded_dim;
  for (int32_t first = 0; first < rows.num_rows; first += kRows) {
    const int32_t num_rows = std::min(kRows, rows.num_rows - first);
    const float* q[kRows];
    for (int32_t r = 0; r < kRows; ++r) {
      q[r] = rows.q + int64_t{first + std::min(r, num_rows - 1)} * dim;
    }
    FoldSteps<kMargin>(q, grid, dim, sums, steps);
    RoundFolded<kMargin>(steps, dim, sums, num_rows, folded.q + int64_t{first} * 2 * dim);
    for (int32_t r = 0; r < num_rows; ++r) {
      folded.thresholds[first + r] = IntegerThreshold(rows, rows.thresholds[first + r], sums, r);
    }
  }
}

void FoldRows(const PageGrid& grid, const ScanRows& rows, FoldedRows& folded) {
  if (rows.certified) {
    FoldAll<MarginKind::kCertified>(grid, rows, folded);
  } else if (rows.margin_sigmas > 0.0f) {
    FoldAll<MarginKind::kSigmas>(grid, rows, folded);
  } else {
    FoldAll<MarginKind::kNone>(grid, rows, folded);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longdecode::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longdecode::cpu {

HWY_EXPORT(FoldRows);

void fold_rows(const PageGrid& grid, const ScanRows& rows, FoldedRows& folded) {
  HWY_DYNAMIC_DISPATCH(FoldRows)(grid, rows, folded);
}

}  // namespace longdecode::cpu
#endif  // HWY_ONCE
