// fold_rows: see ffd_scan.h.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/ffd_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ffd_fold.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
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

// What the margin and the threshold need of one row, over its channels.
struct FoldSums {
  float zero_dot = 0.0f;      // sum q_c z_c
  float n_sum = 0.0f;         // sum n_c
  float squares = 0.0f;       // kSigmas: sum f_c^2
  float lengths = 0.0f;       // kCertified: sum |f_c|
  float zero_lengths = 0.0f;  // kCertified: sum |q_c z_c|
  float errors = 0.0f;        // kCertified: sum |f_c - unit n_c|
  float unit = 0.0f;          // max |f_c| / 127, or 0
  float inverse_unit = 0.0f;  // 127 / max |f_c|, or 0
};

HWY_INLINE float SumOf(FloatVec v) {
  const FloatTag df;
  return hn::GetLane(hn::SumOfLanes(df, v));
}

// f_c into `folded`, and the sums over them.
template <MarginKind kMargin>
HWY_INLINE void FoldSteps(const float* HWY_RESTRICT q, const PageGrid& grid, int32_t dim,
                          FoldSums& sums, float* HWY_RESTRICT folded) {
  const FloatTag df;
  FloatVec max = hn::Zero(df);
  FloatVec zero_dot = hn::Zero(df);
  FloatVec squares = hn::Zero(df);
  FloatVec lengths = hn::Zero(df);
  FloatVec zero_lengths = hn::Zero(df);
  for (int32_t c = 0; c < dim; c += static_cast<int32_t>(hn::Lanes(df))) {
    const FloatVec qc = hn::Load(df, q + c);
    const FloatVec zero = hn::Load(df, grid.zero + c);
    const FloatVec f = hn::Mul(qc, hn::Load(df, grid.step + c));
    zero_dot = hn::MulAdd(qc, zero, zero_dot);
    max = hn::Max(max, hn::Abs(f));
    hn::Store(f, df, folded + c);
    if constexpr (kMargin == MarginKind::kSigmas) squares = hn::MulAdd(f, f, squares);
    if constexpr (kMargin == MarginKind::kCertified) {
      lengths = hn::Add(lengths, hn::Abs(f));
      zero_lengths = hn::Add(zero_lengths, hn::Abs(hn::Mul(qc, zero)));
    }
  }
  sums.zero_dot = SumOf(zero_dot);
  if constexpr (kMargin == MarginKind::kSigmas) sums.squares = SumOf(squares);
  if constexpr (kMargin == MarginKind::kCertified) {
    sums.lengths = SumOf(lengths);
    sums.zero_lengths = SumOf(zero_lengths);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(df, max));
  // Every token of a page whose fold overflows is a candidate: NaN reaches any threshold.
  if (largest > std::numeric_limits<float>::max()) sums.zero_dot = NAN;
  if (largest > kMinFold && sums.zero_dot == sums.zero_dot) {
    sums.unit = largest * (1.0f / 127.0f);
    sums.inverse_unit = 127.0f / largest;
  }
}

// Every 4-channel word twice.
HWY_INLINE void RepeatWords(const int8_t* HWY_RESTRICT n, int32_t dim, int8_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  for (int32_t c = 0; c < dim; c += 4) {
    std::memcpy(out + 2 * c, n + c, 4);
    std::memcpy(out + 2 * c + 4, n + c, 4);
  }
#else
  const hn::Full128<int8_t> d8;
  const hn::Full128<int32_t> d32;
  for (int32_t c = 0; c < dim; c += 16) {
    const auto words = hn::BitCast(d32, hn::Load(d8, n + c));
    hn::Store(hn::BitCast(d8, hn::InterleaveLower(d32, words, words)), d8, out + 2 * c);
    hn::Store(hn::BitCast(d8, hn::InterleaveUpper(d32, words, words)), d8, out + 2 * c + 16);
  }
#endif
}

// n_c = round(f_c / unit), in the order of a group. |f_c| / unit is at most 127 and a rounding, and
// DemoteTo saturates.
template <MarginKind kMargin>
HWY_INLINE void RoundFolded(const float* HWY_RESTRICT folded, int32_t dim, FoldSums& sums,
                            int8_t* HWY_RESTRICT n) {
  const FloatTag df;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<int8_t, FloatTag> d8;
  alignas(64) int8_t bytes[kMaxPlaneDim];
  const FloatVec unit = hn::Set(df, sums.unit);
  const FloatVec inverse = hn::Set(df, sums.inverse_unit);
  auto n_sum = hn::Zero(di);
  FloatVec errors = hn::Zero(df);
  for (int32_t c = 0; c < dim; c += static_cast<int32_t>(hn::Lanes(df))) {
    const FloatVec f = hn::Load(df, folded + c);
    const auto rounded = hn::NearestInt(hn::Mul(f, inverse));
    n_sum = hn::Add(n_sum, rounded);
    if constexpr (kMargin == MarginKind::kCertified) {
      errors = hn::Add(errors, hn::Abs(hn::NegMulAdd(hn::ConvertTo(df, rounded), unit, f)));
    }
    hn::StoreU(hn::DemoteTo(d8, rounded), d8, bytes + c);
  }
  sums.n_sum = static_cast<float>(hn::GetLane(hn::SumOfLanes(di, n_sum)));
  if constexpr (kMargin == MarginKind::kCertified) sums.errors = SumOf(errors);
  RepeatWords(bytes, dim, n);
}

// In units before softmax_scale, like sums.
double Margin(const ScanRows& rows, const FoldSums& sums) {
  // Half a step per channel between scan and exact value, 1.5 steps of query rounding, and the
  // fp32 rounding of the sums.
  if (rows.certified) {
    return 0.5 * sums.lengths + 1.5 * sums.errors +
           0x1p-18 * (static_cast<double>(sums.lengths) + sums.zero_lengths);
  }
  return rows.margin_sigmas * std::sqrt(sums.squares / 12.0);
}

int32_t IntegerThreshold(const ScanRows& rows, float threshold, const FoldSums& sums) {
  const double needed =
      static_cast<double>(threshold) / rows.softmax_scale - Margin(rows, sums) - sums.zero_dot;
  // Without a unit every n_c is 0 and so is the score above zero_dot.
  const double reach = sums.unit > 0.0f ? needed * sums.inverse_unit + 1.5 * sums.n_sum
                                        : (needed > 0.0 ? kNever : -kNever);
  if (reach >= kNever) return std::numeric_limits<int32_t>::max();
  if (reach > -kNever) return static_cast<int32_t>(std::ceil(reach));
  return std::numeric_limits<int32_t>::min();  // NaN too
}

// Step by step over all rows: the reductions at the end of a row's step are long chains, which
// overlap with the next row's.
template <MarginKind kMargin>
void FoldAll(const PageGrid& grid, const ScanRows& rows, FoldedRows& folded) {
  alignas(64) float steps[kMaxScanRows * kMaxPlaneDim];
  FoldSums sums[kMaxScanRows];
  const int32_t dim = rows.padded_dim;
  for (int32_t r = 0; r < rows.num_rows; ++r) {
    FoldSteps<kMargin>(rows.q + int64_t{r} * dim, grid, dim, sums[r], steps + r * dim);
  }
  for (int32_t r = 0; r < rows.num_rows; ++r) {
    RoundFolded<kMargin>(steps + r * dim, dim, sums[r], folded.q + int64_t{r} * 2 * dim);
  }
  for (int32_t r = 0; r < rows.num_rows; ++r) {
    folded.thresholds[r] = IntegerThreshold(rows, rows.thresholds[r], sums[r]);
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
