#include "tests/gpu/mla_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>

namespace longdecode::gpu_test {
namespace {

struct RowError {
  Row row;
  double squared_error = 0, squared_norm = 0;
  double squared_rounding = 0;  // of the reference, rounded to the output's dtype
  // The element that is most wrong.
  int32_t worst_dim = 0;
  double worst_error = 0, worst_output = 0, worst_expected = 0;
  std::string failure;

  std::string name() const {
    return fmt::format("sequence {} token {} head {}", row.sequence, row.token, row.head);
  }
};

RowError check_row(const MlaWorkload& workload, const Tolerance& tolerance, const Row& row,
                   const Reference& reference, const std::vector<float>& output) {
  RowError result;
  result.row = row;
  double dot = 0, own_norm = 0, worst = 0;
  for (int32_t d = 0; d < 512; ++d) {
    const double expected = reference.o[d], error = std::abs(output[d] - expected);
    result.squared_error += error * error;
    if (!(error <= result.worst_error)) {
      result.worst_dim = d;
      result.worst_error = error;
      result.worst_output = output[d];
      result.worst_expected = expected;
    }
    result.squared_norm += expected * expected;
    const double rounding =
        double{round_through(static_cast<float>(expected), workload.mla_case().dtype)} - expected;
    result.squared_rounding += rounding * rounding;
    dot += output[d] * expected;
    own_norm += double{output[d]} * output[d];
    const bool bad =
        !(error <= tolerance.absolute || error <= tolerance.relative * std::abs(expected));
    if (bad && tolerance.relative > 0 && !(error <= worst)) {
      worst = error;
      result.failure = fmt::format("o[{}] is {}, expected {}", d, output[d], expected);
    }
  }
  const double norms = std::sqrt(own_norm * result.squared_norm);
  if (norms > 0 && !(1 - dot / norms <= tolerance.cosine)) {
    result.failure = fmt::format("1 - cosine is {}", 1 - dot / norms);
  }
  const double lse = workload.lse(row);
  const double lse_error = std::abs(lse - reference.lse);
  const bool lse_ok = std::isinf(reference.lse)
                          ? lse == reference.lse
                          : lse_error <= tolerance.lse_absolute ||
                                lse_error <= tolerance.lse_relative * std::abs(reference.lse);
  if (!lse_ok) result.failure = fmt::format("lse is {}, expected {}", lse, reference.lse);
  if (!result.failure.empty()) {
    result.failure = fmt::format("{}: {}", result.name(), result.failure);
  }
  return result;
}

std::vector<Row> choose_rows(const MlaWorkload& workload, int32_t max_rows) {
  const MlaCase& c = workload.mla_case();
  const int64_t per_sequence = int64_t{c.query_len} * c.num_heads;
  const int64_t total = workload.batch() * per_sequence;
  // Else few sequences, because the reference regenerates the keys of each.
  const int64_t sequences = total <= max_rows
                                ? workload.batch()
                                : std::min<int64_t>(workload.batch(), std::max(1, max_rows / 8));
  const int64_t num_rows = std::min<int64_t>(max_rows, total);
  std::map<int64_t, Row> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t s =
        sequences > 1 ? (i % sequences) * (workload.batch() - 1) / (sequences - 1) : 0;
    const int64_t visits = std::max<int64_t>(1, num_rows / sequences - 1);
    const int64_t within = std::min(per_sequence - 1, i / sequences * (per_sequence - 1) / visits);
    const Row row{static_cast<int32_t>(s), static_cast<int32_t>(within / c.num_heads),
                  static_cast<int32_t>(within % c.num_heads)};
    rows[s * per_sequence + within] = row;
  }
  std::vector<Row> result;
  for (const auto& [index, row] : rows) result.push_back(row);
  return result;
}

// Every element: finite where something is visible, zero elsewhere; paddings untouched.
std::string check_all_written(const MlaWorkload& workload) {
  const MlaCase& c = workload.mla_case();
  const std::vector<uint16_t>& raw = workload.raw_output();
  const int64_t row_elements = 512 + c.row_padding;
  for (int64_t row = 0; row < int64_t{workload.batch()} * c.query_len * c.num_heads; ++row) {
    const auto sequence = static_cast<int32_t>(row / c.num_heads / c.query_len);
    const auto token = static_cast<int32_t>(row / c.num_heads % c.query_len);
    const int32_t query_len = workload.query_len_of(sequence), kv_len = c.kv_lens[sequence];
    const bool visible =
        token < query_len && kv_len > 0 && (!c.causal || kv_len - query_len + token >= 0);
    const float lse = workload.raw_lse()[row];
    if (visible ? !std::isfinite(lse) : lse != -INFINITY) {
      return fmt::format("row {} (sequence {} token {}): lse is {}", row, sequence, token, lse);
    }
    const uint16_t exponent = c.dtype == DType::kF16 ? 0x7c00 : 0x7f80;
    for (int64_t d = 0; d < row_elements; ++d) {
      const uint16_t bits = raw[row * row_elements + d];
      const bool ok = d >= 512  ? bits == 0xffff
                      : visible ? (bits & exponent) != exponent
                                : bits == 0;
      if (!ok) {
        return fmt::format("row {} (sequence {} token {}) element {} has bits {:#x}", row, sequence,
                           token, d, bits);
      }
    }
  }
  return "";
}

}  // namespace

Tolerance smooth_tolerance() { return {8e-4, 2.01 / 128, 5e-6, 1, 1e-6, 8.01 / 65536}; }

Tolerance peaked_tolerance(DType dtype) {
  Tolerance tolerance;
  // The smooth set's limit of the lse does not apply: a sequence of one token has an lse that
  // may be near 0 while the sum of its 576 products, each up to about 0.08 nats, is accumulated in
  // fp32: 46 nats * 2^-24 * 2.
  tolerance.lse_absolute = 6e-6;
  tolerance.relative_rmse = dtype == DType::kF16 ? 4e-4 : 3e-3;
  return tolerance;
}

Outcome check_workload(const MlaWorkload& workload, const Tolerance& tolerance, int32_t max_rows,
                       Mutant mutant) {
  Outcome outcome;
  outcome.failure = check_all_written(workload);
  if (!workload.canary_intact()) outcome.failure = "the run wrote behind its workspace";
  const std::vector<Row> rows = choose_rows(workload, max_rows);
  std::vector<std::vector<float>> outputs;
  for (const Row& row : rows) {
    const float* output = workload.output(row);
    outputs.emplace_back(output, output + 512);
  }
  std::map<int32_t, std::vector<size_t>> by_sequence;
  for (size_t i = 0; i < rows.size(); ++i) by_sequence[rows[i].sequence].push_back(i);
  std::vector<std::pair<int32_t, std::vector<size_t>>> groups(by_sequence.begin(),
                                                              by_sequence.end());
  std::vector<RowError> errors(rows.size());
  const size_t num_threads =
      std::min<size_t>(groups.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t g = t; g < groups.size(); g += num_threads) {
        const std::vector<float> keys = workload.keys(groups[g].first);
        for (size_t i : groups[g].second) {
          const bool padding = rows[i].token >= workload.query_len_of(rows[i].sequence);
          const Reference reference = padding ? Reference{std::vector<double>(512, 0.0), -INFINITY}
                                              : workload.reference(rows[i], keys, mutant);
          errors[i] = check_row(workload, tolerance, rows[i], reference, outputs[i]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double squared_error = 0, squared_norm = 0, squared_rounding = 0;
  for (const RowError& error : errors) {
    squared_error += error.squared_error;
    squared_rounding += error.squared_rounding;
    squared_norm += error.squared_norm;
    if (outcome.failure.empty()) outcome.failure = error.failure;
  }
  outcome.rmse = std::sqrt(squared_error / (512.0 * std::max<size_t>(1, rows.size())));
  outcome.relative_rmse = squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : 0;
  // A single row that one channel dominates (a needle with most of the weight) has the error of
  // that channel's rounding, up to 2^-8 in bf16: no kernel can do better than the rounded
  // reference.
  const double rounding = squared_norm > 0 ? std::sqrt(squared_rounding / squared_norm) : 0;
  const double limit = std::max(tolerance.relative_rmse, 1.1 * rounding);
  if (outcome.failure.empty() && !(outcome.relative_rmse <= limit)) {
    const RowError& worst = *std::max_element(
        errors.begin(), errors.end(),
        [](const RowError& a, const RowError& b) { return a.squared_error < b.squared_error; });
    outcome.failure =
        fmt::format("relative RMSE is {}, limit {}; most of it {}, o[{}] is {}, expected {}",
                    outcome.relative_rmse, limit, worst.name(), worst.worst_dim, worst.worst_output,
                    worst.worst_expected);
  }
  outcome.passed = outcome.failure.empty();
  return outcome;
}

}  // namespace longdecode::gpu_test
