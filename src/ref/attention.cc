#include "ref/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace longdecode::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Query rows that share one read of the keys; the unit of work of a thread.
constexpr int32_t kRowsPerTask = 8;

// Rows [row_begin, row_end) of kv_head, row = query_idx * group + head in group.
struct RowTask {
  int32_t kv_head = 0;
  int32_t row_begin = 0;
  int32_t row_end = 0;
};

void attend_rows(const AttentionProblem& problem, const RowTask& task, const TileSet* kept,
                 int64_t token_begin, int64_t token_end, AttentionOutput* out) {
  const KvSource& kv = *problem.kv;
  const int32_t group = problem.group();
  const int32_t num_rows = task.row_end - task.row_begin;
  const int64_t num_tokens = token_end - token_begin;
  std::vector<double> weights(static_cast<size_t>(num_rows * num_tokens), -kInfinity);
  std::vector<double> row(static_cast<size_t>(std::max(kv.key_dim(), kv.value_dim())));
  const auto output_row = [&](int32_t r) {
    const int32_t query_idx = (task.row_begin + r) / group;
    const int32_t head = task.kv_head * group + (task.row_begin + r) % group;
    return int64_t{query_idx} * problem.num_q_heads + head;
  };
  const auto attended = [&](int32_t r, int64_t token) {
    return problem.visible((task.row_begin + r) / group, token) &&
           (kept == nullptr || kept->has(task.kv_head, token / kTileTokens));
  };

  for (int64_t j = 0; j < num_tokens; ++j) {
    bool loaded = false;
    for (int32_t r = 0; r < num_rows; ++r) {
      if (!attended(r, token_begin + j)) continue;
      if (!loaded) kv.key(task.kv_head, token_begin + j, row.data());
      loaded = true;
      weights[static_cast<size_t>(r * num_tokens + j)] = problem.score(
          dot(row.data(), problem.q.data() + output_row(r) * kv.key_dim(), kv.key_dim()));
    }
  }
  for (int32_t r = 0; r < num_rows; ++r) {
    double* row_weights = weights.data() + r * num_tokens;
    double max = -kInfinity;
    for (int64_t j = 0; j < num_tokens; ++j) {
      // A NaN stays: std::max drops one that comes second.
      max = std::isnan(row_weights[j]) ? row_weights[j] : std::max(max, row_weights[j]);
    }
    if (max == -kInfinity) continue;  // nothing visible: o = 0, lse = -infinity
    double sink = -kInfinity;
    if (!problem.sink_logits.empty()) {
      sink = problem.sink_logits[static_cast<size_t>(output_row(r) % problem.num_q_heads)];
      max = std::max(max, sink);
    }
    double sum = std::exp(sink - max);
    for (int64_t j = 0; j < num_tokens; ++j) sum += std::exp(row_weights[j] - max);
    const double lse = max + std::log(sum);
    out->lse[static_cast<size_t>(output_row(r))] = lse;
    for (int64_t j = 0; j < num_tokens; ++j) row_weights[j] = std::exp(row_weights[j] - lse);
  }
  for (int64_t j = 0; j < num_tokens; ++j) {
    bool loaded = false;
    for (int32_t r = 0; r < num_rows; ++r) {
      if (!attended(r, token_begin + j)) continue;
      if (!loaded) kv.value(task.kv_head, token_begin + j, row.data());
      loaded = true;
      const double weight = weights[static_cast<size_t>(r * num_tokens + j)];
      double* o = out->o.data() + output_row(r) * kv.value_dim();
      for (int32_t c = 0; c < kv.value_dim(); ++c) o[c] += weight * row[static_cast<size_t>(c)];
    }
  }
}

}  // namespace

TileSet::TileSet(const uint32_t* words, int64_t stride, int32_t num_kv_heads, int64_t kv_len)
    : TileSet(num_kv_heads, kv_len) {
  for (int32_t h = 0; h < num_kv_heads; ++h) {
    for (int64_t t = 0; t < num_tiles; ++t) {
      at(h, t) = static_cast<uint8_t>(words[h * stride + t / 32] >> (t % 32) & 1u);
    }
  }
}

bool TileSet::is_subset_of(const TileSet& other) const {
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != 0 && other.kept[i] == 0) return false;
  }
  return true;
}

bool AttentionProblem::visible(int32_t query_idx, int64_t token) const {
  const int64_t p = position(query_idx);
  if (causal && token > p) return false;
  return sliding_window == 0 || p - token < sliding_window;
}

double AttentionProblem::score(double dot) const {
  const double s = softmax_scale * dot;
  return soft_cap > 0.0 ? soft_cap * std::tanh(s / soft_cap) : s;
}

double dot(const double* a, const double* b, int64_t count) {
  double sums[8] = {};  // independent sums, so that the compiler may use vectors
  const int64_t whole = count / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double total = 0.0;
  for (double sum : sums) total += sum;
  for (int64_t i = whole; i < count; ++i) total += a[i] * b[i];
  return total;
}

AttentionOutput attend(const AttentionProblem& problem, const TileSet* kept, int64_t token_begin,
                       int64_t token_end) {
  AttentionOutput out;
  const int64_t num_rows = int64_t{problem.query_len} * problem.num_q_heads;
  out.o.assign(static_cast<size_t>(num_rows * problem.kv->value_dim()), 0.0);
  out.lse.assign(static_cast<size_t>(num_rows), -kInfinity);
  std::vector<RowTask> tasks;
  const int32_t rows_per_head = problem.query_len * problem.group();
  for (int32_t h = 0; h < problem.kv->num_kv_heads(); ++h) {
    for (int32_t r = 0; r < rows_per_head; r += kRowsPerTask) {
      tasks.push_back({h, r, std::min(r + kRowsPerTask, rows_per_head)});
    }
  }
  const auto num_tasks = static_cast<int64_t>(tasks.size());
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < num_tasks; ++i) {
    attend_rows(problem, tasks[static_cast<size_t>(i)], kept, token_begin, token_end, &out);
  }
  return out;
}

AttentionOutput attend(const AttentionProblem& problem, const TileSet* kept) {
  return attend(problem, kept, 0, problem.kv->kv_len());
}

AttentionOutput merge(const std::vector<AttentionOutput>& partials, int64_t dim) {
  AttentionOutput out;
  if (partials.empty()) return out;
  const auto num_rows = static_cast<int64_t>(partials[0].lse.size());
  out.o.assign(static_cast<size_t>(num_rows * dim), 0.0);
  out.lse.assign(static_cast<size_t>(num_rows), -kInfinity);
  for (int64_t r = 0; r < num_rows; ++r) {
    const auto row = static_cast<size_t>(r);
    double max = -kInfinity;
    for (const AttentionOutput& partial : partials) max = std::max(max, partial.lse[row]);
    if (max == -kInfinity) continue;
    double sum = 0.0;
    for (const AttentionOutput& partial : partials) sum += std::exp(partial.lse[row] - max);
    out.lse[row] = max + std::log(sum);
    for (const AttentionOutput& partial : partials) {
      if (partial.lse[row] == -kInfinity) continue;
      const double weight = std::exp(partial.lse[row] - out.lse[row]);
      for (int64_t c = 0; c < dim; ++c) {
        const auto i = static_cast<size_t>(r * dim + c);
        out.o[i] += weight * partial.o[i];
      }
    }
  }
  return out;
}

AttentionOutput prefill(const PrefillArgs& args) {
  const PagedSource kv(args.kv, args.batch, 0);
  AttentionProblem problem;
  problem.kv = &kv;
  problem.query_len = static_cast<int32_t>(args.q.shape[0]);
  problem.num_q_heads = static_cast<int32_t>(args.q.shape[1]);
  problem.q = read_tensor(args.q);
  problem.softmax_scale = static_cast<double>(args.softmax_scale);
  problem.soft_cap = static_cast<double>(args.soft_cap);
  problem.sliding_window = args.sliding_window;
  if (args.sink_logits != nullptr) {
    problem.sink_logits.assign(args.sink_logits, args.sink_logits + problem.num_q_heads);
  }
  return attend(problem);
}

}  // namespace longdecode::ref
