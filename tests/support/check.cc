#include "tests/support/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ref/decode.h"

namespace longdecode::testing {
namespace {

constexpr double kUnit32 = 0x1p-24;

// Weights below 2^-126 are 0 in fp32 (a learned sink takes the rest): 2^16 of them times |v|.
constexpr double kUnderflow = 0x1p-110;

double softmax_error(int64_t kv_len) { return 0x1p-20 + kUnit32 * std::sqrt(double(kv_len)); }

double output_unit(DType dtype) {
  if (dtype == DType::kF32) return kUnit32;
  return dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

// |v| in place of v: attention over it is sum_j p_j |v_j|.
class AbsoluteValues : public ref::KvSource {
 public:
  explicit AbsoluteValues(const ref::KvSource& kv) : kv_(kv) {}
  int64_t kv_len() const override { return kv_.kv_len(); }
  int32_t num_kv_heads() const override { return kv_.num_kv_heads(); }
  int32_t key_dim() const override { return kv_.key_dim(); }
  int32_t value_dim() const override { return kv_.value_dim(); }
  void key(int32_t kv_head, int64_t token, double* row) const override {
    kv_.key(kv_head, token, row);
  }
  void value(int32_t kv_head, int64_t token, double* row) const override {
    kv_.value(kv_head, token, row);
    for (int32_t c = 0; c < value_dim(); ++c) row[c] = std::abs(row[c]);
  }

 private:
  const ref::KvSource& kv_;
};

double largest_value(const ref::KvSource& kv) {
  std::vector<double> row(static_cast<size_t>(kv.value_dim()));
  double largest = 0.0;
  for (int32_t h = 0; h < kv.num_kv_heads(); ++h) {
    for (int64_t j = 0; j < kv.kv_len(); ++j) {
      kv.value(h, j, row.data());
      for (const double v : row) largest = std::max(largest, std::abs(v));
    }
  }
  return largest;
}

// E of check.h per row [query_len, num_q_heads].
std::vector<double> score_errors(const ref::AttentionProblem& problem, const ref::PagedSource& kv) {
  const int32_t dim = kv.key_dim();
  std::vector<double> errors(static_cast<size_t>(problem.query_len * problem.num_q_heads), 0.0);
  std::vector<double> key(static_cast<size_t>(dim));
  std::vector<double> steps(static_cast<size_t>(dim), 0.0);
  std::vector<double> q(problem.q.size());
  std::transform(problem.q.begin(), problem.q.end(), q.begin(),
                 [](double x) { return std::abs(x); });
  for (int32_t h = 0; h < kv.num_kv_heads(); ++h) {
    for (int64_t j = 0; j < kv.kv_len(); ++j) {
      kv.key(h, j, key.data());
      if (j < kv.num_quantized_tokens()) {
        kv.steps(h, j, steps.data());
      } else {
        std::fill(steps.begin(), steps.end(), 0.0);
      }
      for (int32_t c = 0; c < dim; ++c) {
        const auto i = static_cast<size_t>(c);
        key[i] = std::abs(key[i]) + 2 * steps[i];
      }
      for (int32_t r = 0; r < problem.query_len * problem.group(); ++r) {
        const int64_t row = int64_t{r / problem.group()} * problem.num_q_heads +
                            h * problem.group() + r % problem.group();
        double& error = errors[static_cast<size_t>(row)];
        error = std::max(error, ref::dot(key.data(), q.data() + row * dim, dim));
      }
    }
  }
  for (double& error : errors) error *= problem.softmax_scale * kUnit32 * (dim / 8 + 16);
  return errors;
}

// Row r of sequence b of the outputs.
struct Expected {
  ref::DecodeResult result;
  std::vector<double> score_error;  // per valid row
  std::vector<double> absolute;     // sum_j p_j |v_j|, as o
  double largest_value = 0.0;       // max |v|
};

// NaN and infinity match exactly, whatever the limit; infinite scores (E of check.h) have none.
bool is_near(double value, double expected, double limit) {
  if (std::isnan(expected)) return std::isnan(value);
  if (std::isinf(expected)) return value == expected;
  return std::isfinite(value) && !(std::abs(value - expected) > limit);
}

std::string check_rows(const PagedProblem& problem, const Outputs& outputs, int32_t b,
                       const Expected& expected) {
  const DecodeDesc& desc = problem.desc();
  const auto dim = static_cast<size_t>(desc.format.value_dim);
  const auto rows = static_cast<size_t>(problem.args().query_len * desc.num_q_heads);
  const double sum_error = softmax_error(problem.args().batch.kv_lens[b]);
  const double floor =
      outputs.weight_floor * problem.args().batch.kv_lens[b] * expected.largest_value;
  for (size_t r = 0; r < rows; ++r) {
    const std::string where =
        fmt::format("batch {} query {} head {}: ", b, r / static_cast<size_t>(desc.num_q_heads),
                    r % static_cast<size_t>(desc.num_q_heads));
    const double lse = outputs.lse[static_cast<size_t>(b) * rows + r];
    const double ref_lse = expected.result.attention.lse[r];
    const bool valid = r < expected.score_error.size();
    const double error = valid ? expected.score_error[r] : 0.0;
    const double lse_limit = error + 0x1p-22 * std::abs(ref_lse) + sum_error;
    if (!is_near(lse, ref_lse, lse_limit)) {
      return where + fmt::format("lse {} should be {} +- {}", lse, ref_lse, lse_limit);
    }
    for (size_t c = 0; c < dim; ++c) {
      const double o = outputs.o[(static_cast<size_t>(b) * rows + r) * dim + c];
      const double ref_o = expected.result.attention.o[r * dim + c];
      const double sum = valid ? expected.absolute[r * dim + c] : 0.0;
      const double limit =
          output_unit(desc.q_dtype) * std::abs(ref_o) +
          (2 * error + sum_error + outputs.weight_unit) * sum + floor +
          (desc.q_dtype == DType::kF16 ? 0x1p-25 : kUnderflow);  // 0x1p-25: half of its spacing
      if (!is_near(o, ref_o, limit)) {
        return where + fmt::format("o[{}] is {}, should be {} +- {}", c, o, ref_o, limit);
      }
    }
  }
  return "";
}

std::string check_selection(const PagedProblem& problem, const Outputs& outputs, int32_t b,
                            const ref::AttentionProblem& attention, const ref::PagedSource& kv) {
  const DecodeDesc& desc = problem.desc();
  const ref::TileSet& tiles = outputs.tiles[static_cast<size_t>(b)];
  const FfdOptions& options = desc.ffd;
  const ref::Selection lower = ref::select(attention, kv, options, {.query_errors = -1.0});
  if (!lower.tiles.is_subset_of(tiles)) {
    return fmt::format("batch {}: a tile was dropped that the selection keeps", b);
  }
  if (options.certified) {
    const int64_t missed = ref::count_missed_exact(attention, kv, options, tiles);
    if (missed != 0) return fmt::format("batch {}: certified, but {} tokens missed", b, missed);
  } else {
    const ref::Selection upper = ref::select(attention, kv, options, {.query_errors = 1.0});
    if (!tiles.is_subset_of(upper.tiles)) {
      return fmt::format("batch {}: a tile was kept that the selection drops", b);
    }
  }
  return "";
}

std::string check_statistics(const PagedProblem& problem, const Outputs& outputs, int32_t b,
                             const Expected& expected) {
  const DecodeDesc& desc = problem.desc();
  const ref::DecodeResult& result = expected.result;
  const auto heads = static_cast<size_t>(desc.format.num_kv_heads);
  for (size_t h = 0; h < heads; ++h) {
    const int64_t attended = outputs.tokens_attended[static_cast<size_t>(b) * heads + h];
    if (attended != result.tokens_attended[h]) {
      return fmt::format("batch {} kv head {}: tokens_attended {} but its tiles hold {}", b, h,
                         attended, result.tokens_attended[h]);
    }
  }
  const auto rows = static_cast<size_t>(problem.args().query_len * desc.num_q_heads);
  for (size_t r = 0; r < rows; ++r) {
    if (std::isnan(result.attention.lse[r])) continue;  // nothing can be said about such a row
    const double error = r < expected.score_error.size() ? expected.score_error[r] : 0.0;
    const double max = outputs.pseudo_max[static_cast<size_t>(b) * rows + r];
    const double ref_max = result.pseudo_max[r];
    const double limit = error + 0x1p-22 * std::abs(ref_max) + 1e-6;
    if (!is_near(max, ref_max, limit)) {
      return fmt::format("batch {} row {}: pseudo_max {} should be {}", b, r, max, ref_max);
    }
    const double bound = outputs.dropped_mass_bound[static_cast<size_t>(b) * rows + r];
    const double ref_bound = result.dropped_mass_bound[r];
    if (!is_near(bound, ref_bound, (4 * error + 1e-4) * ref_bound + 1e-30)) {
      return fmt::format("batch {} row {}: dropped_mass_bound {} should be {}", b, r, bound,
                         ref_bound);
    }
  }
  return "";
}

// Dense attention scans and drops nothing, and attends what its window lets it see.
std::string check_dense_statistics(const PagedProblem& problem, const Outputs& outputs, int32_t b,
                                   const ref::AttentionProblem& attention) {
  const DecodeDesc& desc = problem.desc();
  const auto heads = static_cast<size_t>(desc.format.num_kv_heads);
  for (size_t h = 0; h < heads && !outputs.tokens_scanned.empty(); ++h) {
    const size_t at = static_cast<size_t>(b) * heads + h;
    const int64_t kv_len = attention.query_len == 0 ? 0 : attention.kv->kv_len();
    const int64_t attended = outputs.tokens_attended[at];
    if (desc.sliding_window == 0 ? attended != kv_len : attended < 0 || attended > kv_len) {
      return fmt::format("batch {} kv head {}: tokens_attended {} of {}", b, h, attended, kv_len);
    }
    if (outputs.tokens_scanned[at] != 0) return "a dense run scanned tokens";
  }
  for (const double max : outputs.pseudo_max) {
    if (max != -std::numeric_limits<double>::infinity()) return "a dense run has a pseudo-max";
  }
  for (const double bound : outputs.dropped_mass_bound) {
    if (bound != 0.0) return "a dense run dropped something";
  }
  return "";
}

std::string check_sequence(const PagedProblem& problem, const Outputs& outputs, int32_t b) {
  const DecodeDesc& desc = problem.desc();
  const bool ffd = desc.method == Method::kFfd;
  const ref::PagedSource kv(problem.args().kv, problem.args().batch, b);
  const ref::AttentionProblem attention = ref::make_problem(desc, problem.args(), b, kv);
  const ref::TileSet* tiles = nullptr;
  if (ffd) {
    if (outputs.tiles.size() <= static_cast<size_t>(b)) return "no kept_tiles were written";
    tiles = &outputs.tiles[static_cast<size_t>(b)];
    std::string fault = check_selection(problem, outputs, b, attention, kv);
    if (!fault.empty()) return fault;
  }
  Expected expected;
  expected.result = ref::decode(desc, problem.args(), b, tiles);
  expected.score_error = score_errors(attention, kv);
  const AbsoluteValues absolute(kv);
  ref::AttentionProblem absolute_attention = attention;
  absolute_attention.kv = &absolute;
  expected.absolute = ref::attend(absolute_attention, tiles).o;
  if (outputs.weight_floor > 0.0) expected.largest_value = largest_value(kv);
  std::string fault = check_rows(problem, outputs, b, expected);
  if (!fault.empty()) return fault;
  return ffd ? check_statistics(problem, outputs, b, expected)
             : check_dense_statistics(problem, outputs, b, attention);
}

}  // namespace

std::string check(const PagedProblem& problem, const Outputs& outputs) {
  if (!outputs.status.ok()) return "refused: " + outputs.status.message();
  std::string faults = outputs.damage + problem.damage();
  if (outputs.o.empty()) faults += "no output";
  for (int32_t b = 0; b < problem.batch() && faults.empty(); ++b) {
    faults = check_sequence(problem, outputs, b);
  }
  return faults;
}

std::string run_and_check(const ProblemSpec& spec, const DecodeFn& fn) {
  const PagedProblem problem(spec);
  const Outputs outputs = fn(problem.desc(), problem.args());
  if (has_run_plan() && outputs.status.code() == StatusCode::kUnsupported) return "";
  const std::string faults = check(problem, outputs);
  return faults.empty() ? "" : faults + "\n" + problem.repro();
}

std::string run_and_check(const ProblemSpec& spec) {
  return run_and_check(
      spec, [](const DecodeDesc& desc, const DecodeArgs& args) { return run_plan(desc, args); });
}

std::string run_and_check(const std::vector<ProblemSpec>& specs) {
  std::string faults;
  int32_t num_faulty = 0;
  for (const ProblemSpec& spec : specs) {
    const std::string fault = run_and_check(spec);
    if (!fault.empty() && ++num_faulty <= 3) faults += fault + "\n";
  }
  return num_faulty == 0 ? ""
                         : fmt::format("{} of {} problems failed, the first:\n{}", num_faulty,
                                       specs.size(), faults);
}

std::string same_bits(const Outputs& a, int32_t a_idx, const Outputs& b, int32_t b_idx) {
  if (!a.status.ok()) return "refused: " + a.status.message();
  if (!b.status.ok()) return "refused: " + b.status.message();
  const auto slice = [](const auto& all, int32_t batch, int32_t idx) {
    const auto size = static_cast<std::ptrdiff_t>(all.size() / static_cast<size_t>(batch));
    return std::vector(all.begin() + idx * size, all.begin() + (idx + 1) * size);
  };
  const auto a_bits = slice(a.o_bits, a.batch, a_idx);
  const auto b_bits = slice(b.o_bits, b.batch, b_idx);
  const auto at = std::mismatch(a_bits.begin(), a_bits.end(), b_bits.begin(), b_bits.end());
  if (at.first != a_bits.end() || at.second != b_bits.end()) {
    return fmt::format("o differs from word {} of {} on", at.first - a_bits.begin(), a_bits.size());
  }
  const auto a_lse = slice(a.lse, a.batch, a_idx);
  const auto b_lse = slice(b.lse, b.batch, b_idx);
  for (size_t i = 0; i < a_lse.size(); ++i) {
    if (std::bit_cast<uint64_t>(a_lse[i]) != std::bit_cast<uint64_t>(b_lse[i])) {
      return fmt::format("lse[{}] is {} and {}", i, a_lse[i], b_lse[i]);
    }
  }
  if (!a.tiles.empty() && !b.tiles.empty() &&
      a.tiles[static_cast<size_t>(a_idx)].kept != b.tiles[static_cast<size_t>(b_idx)].kept) {
    return "the kept tiles differ";
  }
  return "";
}

std::string same_bits(const Outputs& a, const Outputs& b) {
  if (a.batch != b.batch) return "the batches differ";
  for (int32_t i = 0; i < a.batch; ++i) {
    const std::string difference = same_bits(a, i, b, i);
    if (!difference.empty()) return fmt::format("batch {}: {}", i, difference);
  }
  return a.status.ok() && b.status.ok() ? "" : "refused";
}

std::string check_shared_prefix(ProblemSpec spec, int32_t longer_kv_len) {
  spec.shared_pages = 2;
  spec.desc.batch_invariant = true;
  const std::string faults = run_and_check(spec);
  if (!faults.empty()) return faults;
  const PagedProblem before(spec);
  spec.kv_lens[1] = longer_kv_len;
  const PagedProblem after(spec);
  return same_bits(run_plan(before.desc(), before.args()), 0, run_plan(after.desc(), after.args()),
                   0);
}

}  // namespace longdecode::testing
