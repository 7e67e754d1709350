#include "ref/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float_convert.h"

namespace longdecode::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows of the padding: o = 0, lse and m~ = -infinity, bound 0.
void pad_rows(int64_t num_rows, int32_t value_dim, DecodeResult* result) {
  result->attention.o.resize(static_cast<size_t>(num_rows * value_dim), 0.0);
  result->attention.lse.resize(static_cast<size_t>(num_rows), -kInfinity);
  result->pseudo_max.resize(static_cast<size_t>(num_rows), -kInfinity);
  result->dropped_mass_bound.resize(static_cast<size_t>(num_rows), 0.0);
}

void fill_statistics(const AttentionProblem& problem, const FfdOptions& options,
                     DecodeResult* result) {
  const int64_t kv_len = problem.kv->kv_len();
  for (int32_t h = 0; h < problem.kv->num_kv_heads(); ++h) {
    int64_t attended = 0;
    for (int64_t t = 0; t < result->tiles.num_tiles; ++t) {
      if (!result->tiles.has(h, t)) continue;
      attended += std::min<int64_t>(kTileTokens, kv_len - t * kTileTokens);
    }
    result->tokens_attended.push_back(attended);
  }
  for (int32_t t = 0; t < problem.query_len; ++t) {
    for (int32_t i = 0; i < problem.num_q_heads; ++i) {
      int64_t dropped = 0;
      for (int64_t j = 0; j < kv_len; ++j) {
        if (problem.visible(t, j) && !result->tiles.has(i / problem.group(), j / kTileTokens)) {
          ++dropped;
        }
      }
      const auto row = static_cast<size_t>(t * problem.num_q_heads + i);
      result->dropped_mass_bound.push_back(
          dropped == 0 ? 0.0
                       : static_cast<double>(dropped) *
                             std::exp(result->pseudo_max[row] - static_cast<double>(options.delta) -
                                      result->attention.lse[row]));
    }
  }
}

}  // namespace

AttentionProblem make_problem(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                              const KvSource& kv) {
  AttentionProblem problem;
  problem.kv = &kv;
  problem.num_q_heads = desc.num_q_heads;
  problem.query_len =
      args.batch.query_lens != nullptr ? args.batch.query_lens[batch_idx] : args.query_len;
  TensorView q = args.q;
  q.data = static_cast<char*>(q.data) + batch_idx * q.stride[0] * dtype_bytes(q.dtype);
  q.shape[0] = 1;
  q.shape[1] = problem.query_len;
  if (args.q.shape[1] == 1) q.stride[1] = 0;
  problem.q = read_tensor(q);
  problem.softmax_scale = desc.softmax_scale != 0.0f
                              ? static_cast<double>(desc.softmax_scale)
                              : 1.0 / std::sqrt(static_cast<double>(kv.key_dim()));
  problem.soft_cap = static_cast<double>(desc.soft_cap);
  problem.sliding_window = desc.sliding_window;
  problem.causal = desc.causal;
  if (desc.learned_sinks) {
    problem.sink_logits.assign(args.sink_logits, args.sink_logits + desc.num_q_heads);
  }
  return problem;
}

DecodeResult decode(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                    const TileSet* tiles) {
  const PagedSource kv(args.kv, args.batch, batch_idx);
  const AttentionProblem problem = make_problem(desc, args, batch_idx, kv);
  DecodeResult result;
  if (desc.method == Method::kFfd) {
    Selection selection = select(problem, kv, desc.ffd, {});
    result.tiles = tiles != nullptr ? *tiles : std::move(selection.tiles);
    result.pseudo_max = std::move(selection.pseudo_max);
    result.attention = attend(problem, &result.tiles);
    fill_statistics(problem, desc.ffd, &result);
  } else {
    result.attention = attend(problem);
  }
  pad_rows(int64_t{args.query_len} * desc.num_q_heads, kv.value_dim(), &result);
  return result;
}

AttentionOutput decode_dense(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                             const KvSource& kv) {
  DecodeResult result;
  result.attention = attend(make_problem(desc, args, batch_idx, kv));
  pad_rows(int64_t{args.query_len} * desc.num_q_heads, kv.value_dim(), &result);
  return std::move(result.attention);
}

}  // namespace longdecode::ref
