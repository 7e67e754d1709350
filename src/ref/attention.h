// Softmax attention in fp64, two passes, one sequence at a time (the maths of attention.h).
#ifndef LONGDECODE_REF_ATTENTION_H_
#define LONGDECODE_REF_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "base/backend.h"
#include "longdecode/attention.h"
#include "ref/kv_source.h"

namespace longdecode::ref {

// Tiles of kTileTokens tokens, per kv head.
struct TileSet {
  int64_t num_tiles = 0;
  std::vector<uint8_t> kept;  // [num_kv_heads, num_tiles], 0 or 1

  TileSet() = default;
  TileSet(int32_t num_kv_heads, int64_t kv_len)
      : num_tiles((kv_len + kTileTokens - 1) / kTileTokens),
        kept(static_cast<size_t>(num_kv_heads * num_tiles), 0) {}
  // From DecodeStats::kept_tiles of one sequence.
  TileSet(const uint32_t* words, int64_t stride, int32_t num_kv_heads, int64_t kv_len);

  uint8_t& at(int32_t kv_head, int64_t tile) {
    return kept[static_cast<size_t>(kv_head * num_tiles + tile)];
  }
  bool has(int32_t kv_head, int64_t tile) const {
    return kept[static_cast<size_t>(kv_head * num_tiles + tile)] != 0;
  }
  // Every tile of this is in other.
  bool is_subset_of(const TileSet& other) const;
};

// The query tokens of one sequence and how they attend.
struct AttentionProblem {
  const KvSource* kv = nullptr;
  int32_t num_q_heads = 0;
  int32_t query_len = 0;
  std::vector<double> q;  // [query_len, num_q_heads, key_dim]
  double softmax_scale = 1.0;
  double soft_cap = 0.0;
  int64_t sliding_window = 0;
  bool causal = true;
  std::vector<double> sink_logits;  // empty, or [num_q_heads]

  int32_t group() const { return num_q_heads / kv->num_kv_heads(); }
  int64_t position(int32_t query_idx) const { return kv->kv_len() - query_len + query_idx; }
  bool visible(int32_t query_idx, int64_t token) const;
  // Scaled and capped score of a dot product.
  double score(double dot) const;
};

struct AttentionOutput {
  std::vector<double> o;    // [query_len, num_q_heads, value_dim]
  std::vector<double> lse;  // [query_len, num_q_heads], natural log
};

double dot(const double* a, const double* b, int64_t count);

// Attends to the visible tokens in [token_begin, token_end) that lie in a tile of `kept`
// (nullptr: every tile). A learned sink logit counts here, so split callers pass it once.
AttentionOutput attend(const AttentionProblem& problem, const TileSet* kept, int64_t token_begin,
                       int64_t token_end);
AttentionOutput attend(const AttentionProblem& problem, const TileSet* kept = nullptr);

// Partials over disjoint token sets, rows of dim elements each.
AttentionOutput merge(const std::vector<AttentionOutput>& partials, int64_t dim);

AttentionOutput prefill(const PrefillArgs& args);

}  // namespace longdecode::ref

#endif  // LONGDECODE_REF_ATTENTION_H_
