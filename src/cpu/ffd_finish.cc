// FfdHead: outputs and statistics.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/ffd_head.h"
#include "cpu/paged_rows.h"

namespace longdecode::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int32_t kMaxRows = kMaxQueryLen * 16;

}  // namespace

bool FfdHead::is_kept(int64_t tile) const {
  const int64_t tiles = run_.layout.tokens_per_split() / kTileTokens;
  const uint32_t* words = run_.layout.kept_words(head_idx_, static_cast<int32_t>(tile / tiles));
  return (words[tile % tiles / 32] >> (tile % 32) & 1) != 0;
}

bool FfdHead::counts() const {
  const DecodeStats& stats = run_.args.stats;
  return stats.tokens_scanned != nullptr || stats.tokens_attended != nullptr ||
         stats.bytes_read != nullptr;
}

// Bytes: codes of every tile scanned or attended and the constants of their pages, residuals and
// values of attended tiles, ring rows.
void FfdHead::count(int32_t split) const {
  if (!counts()) return;
  FfdCounters counters;
  const Span tiles = split_tiles(split);
  const int64_t tiles_per_page = format_.page_size / kTileTokens;
  const int64_t tile_code_bytes = format_.code_bytes() / tiles_per_page;
  const int64_t constant_bytes = format_.chunk_bytes() - format_.code_bytes();
  const int64_t value_bytes = format_.value_dim * dtype_bytes(format_.dtype);
  int64_t last_page = -1;
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const int64_t num_tokens = std::min<int64_t>(kTileTokens, spans_.kv_len - tile * kTileTokens);
    const bool scanned = scans() && spans_.scan_tiles.contains(tile);
    const bool kept = is_kept(tile);
    if (scanned) counters.tokens_scanned += num_tokens;
    if (kept) {
      counters.tokens_attended += num_tokens;
      counters.bytes_read += num_tokens * value_bytes;
    }
    if (tile * kTileTokens >= spans_.num_quantized) {
      if (kept) counters.bytes_read += num_tokens * format_.key_dim * dtype_bytes(format_.dtype);
    } else if (scanned || kept) {
      if (tile / tiles_per_page != last_page) counters.bytes_read += constant_bytes;
      last_page = tile / tiles_per_page;
      counters.bytes_read += tile_code_bytes + (kept ? format_.residual_tile_bytes() : 0);
    }
  }
  run_.layout.counters(head_idx_, split) = counters;
}

// Visible tokens of the query token whose tile was not attended.
int64_t FfdHead::num_dropped(int32_t query_idx) const {
  const QuerySpan& span = spans_.queries[query_idx];
  int64_t dropped = 0;
  for (int64_t token = span.begin; token < span.end;) {
    const int64_t tile = token / kTileTokens;
    const int64_t stop = std::min((tile + 1) * kTileTokens, span.end);
    if (!is_kept(tile)) dropped += stop - token;
    token = stop;
  }
  return dropped;
}

void FfdHead::finish() const {
  float pseudo_maxima[kMaxRows];
  pseudo_max(pseudo_maxima);
  const int32_t group = run_.layout.group();
  for (int32_t t = 0; t < run_.args.query_len; ++t) {
    for (int32_t i = 0; i < group; ++i) {
      finish_row_at(t, i, t < spans_.query_len ? pseudo_maxima[t * group + i] : kNothing);
    }
  }
  write_head_statistics();
}

void FfdHead::finish_row_at(int32_t query_idx, int32_t head, float pseudo_max) const {
  const DecodeArgs& args = run_.args;
  const int32_t group = run_.layout.group();
  const int32_t q_head = kv_head_ * group + head;
  const int64_t row =
      (int64_t{batch_idx_} * args.query_len + query_idx) * run_.desc.num_q_heads + q_head;
  float lse = kNothing;
  const RowOutput output{row_address(args.o, batch_idx_, query_idx, q_head), args.o.dtype, &lse};
  const bool real = query_idx < spans_.query_len && num_splits() > 0;
  if (real) {
    const StateList list{run_.layout.state(head_idx_, 0),
                         run_.layout.state_floats(),
                         num_splits(),
                         num_rows_,
                         format_.value_dim,
                         format_.dtype};
    const float* sink = run_.desc.learned_sinks ? args.sink_logits + q_head : nullptr;
    finish_row(list, query_idx * group + head, sink, output);
  } else {
    write_empty_row(format_.value_dim, output);
  }
  if (args.lse != nullptr) args.lse[row] = lse;
  if (args.stats.pseudo_max != nullptr) args.stats.pseudo_max[row] = pseudo_max;
  if (args.stats.dropped_mass_bound != nullptr) {
    const int64_t dropped = real ? num_dropped(query_idx) : 0;
    args.stats.dropped_mass_bound[row] =
        dropped == 0
            ? 0.0f
            : static_cast<float>(dropped) * std::exp(pseudo_max - run_.desc.ffd.delta - lse);
  }
}

void FfdHead::write_head_statistics() const {
  const DecodeStats& stats = run_.args.stats;
  FfdCounters total;
  for (int32_t split = 0; counts() && split < num_splits(); ++split) {
    const FfdCounters& part = run_.layout.counters(head_idx_, split);
    total.tokens_scanned += part.tokens_scanned;
    total.tokens_attended += part.tokens_attended;
    total.bytes_read += part.bytes_read;
  }
  if (stats.tokens_scanned != nullptr) stats.tokens_scanned[head_idx_] = total.tokens_scanned;
  if (stats.tokens_attended != nullptr) stats.tokens_attended[head_idx_] = total.tokens_attended;
  if (stats.bytes_read != nullptr) stats.bytes_read[head_idx_] = total.bytes_read;
  if (stats.kept_tiles == nullptr) return;
  uint32_t* words = stats.kept_tiles + head_idx_ * stats.kept_tiles_stride;
  std::fill_n(words, stats.kept_tiles_stride, 0u);
  const int64_t num_tiles = num_splits() == 0 ? 0 : split_tiles(num_splits() - 1).end;
  for (int64_t tile = 0; tile < std::min(num_tiles, stats.kept_tiles_stride * 32); ++tile) {
    if (is_kept(tile)) words[tile / 32] |= 1u << (tile % 32);
  }
}

}  // namespace longdecode::cpu
