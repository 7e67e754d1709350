#include "cpu/ffd_head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/integer_math.h"
#include "cpu/paged_rows.h"

namespace longdecode::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
// Tiles of sink tokens, and of recent ones, that are asked for in advance: about 200 KB at head_dim
// 128. Batches ask for the others.
constexpr int64_t kMaxTilesAsked = 32;

Span intersect(const Span& a, const Span& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// The bits of tokens from `begin` on, in the order of a hit mask. begin: index in the tile.
uint16_t hits_from(int64_t begin) {
  uint16_t mask = 0;
  for (int32_t bit = 0; bit < kTileTokens; ++bit) {
    if (hit_token(bit) >= begin) mask |= static_cast<uint16_t>(1u << bit);
  }
  return mask;
}

void set_bits(uint32_t* words, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) words[i / 32] |= 1u << (i % 32);
}

}  // namespace

FfdHead::FfdHead(const FfdRun& run, int32_t batch_idx, int32_t kv_head)
    : run_(run),
      format_(run.desc.format),
      batch_idx_(batch_idx),
      kv_head_(kv_head),
      head_idx_(int64_t{batch_idx} * run.desc.format.num_kv_heads + kv_head) {
  const BatchView& batch = run.args.batch;
  const int32_t query_len =
      batch.query_lens != nullptr ? batch.query_lens[batch_idx] : run.args.query_len;
  num_rows_ = query_len * run.layout.group();
  source_ = {&run.args.kv, batch.block_table + batch_idx * batch.block_table_stride,
             batch.slots[batch_idx], kv_head};
  spans_ = make_spans(run.desc, batch.kv_lens[batch_idx], query_len);
}

int32_t FfdHead::num_splits() const {
  if (num_rows_ == 0) return 0;
  const int64_t tokens = run_.layout.tokens_per_split();
  return static_cast<int32_t>((spans_.kv_len + tokens - 1) / tokens);
}

bool FfdHead::scans() const {
  return run_.desc.method == Method::kFfd && run_.desc.ffd.delta < INFINITY;
}

Span FfdHead::split_tiles(int32_t split) const {
  const int64_t tiles = run_.layout.tokens_per_split() / kTileTokens;
  return {split * tiles,
          std::min((split + 1) * tiles, (spans_.kv_len + kTileTokens - 1) / kTileTokens)};
}

QueryRows FfdHead::query_rows(bool quantized) const {
  QueryRows rows;
  rows.num_rows = num_rows_;
  rows.rows_per_query = run_.layout.group();
  rows.key_dim = format_.key_dim;
  rows.value_dim = format_.value_dim;
  rows.key_dtype = quantized ? DType::kF32 : format_.dtype;
  rows.value_dtype = format_.dtype;
  rows.softmax_scale = run_.desc.softmax_scale;
  rows.soft_cap = run_.desc.soft_cap;
  rows.q = quantized ? run_.layout.q_plane(head_idx_) : run_.layout.q_recent(head_idx_);
  return rows;
}

RowState FfdHead::state(int32_t split) const {
  return row_state_at(run_.layout.state(head_idx_, split), num_rows_);
}

void FfdHead::begin() const {
  const int64_t stride = packed_dim(format_.key_dim);
  const int32_t group = run_.layout.group();
  const TensorView& q = run_.args.q;
  for (int32_t r = 0; r < num_rows_; ++r) {
    const void* from = row_address(q, batch_idx_, r / group, kv_head_ * group + r % group);
    pack_query(from, q.dtype, DType::kF32, format_.key_dim,
               run_.layout.q_plane(head_idx_) + r * stride);
    pack_query(from, q.dtype, format_.dtype, format_.key_dim,
               run_.layout.q_recent(head_idx_) + r * stride);
  }
  if (num_rows_ == 0) return;
  for (const Span& tiles : {spans_.sink_tiles, spans_.recent_tiles}) {
    const int64_t end = std::min(tiles.end, tiles.begin + kMaxTilesAsked);
    for (int64_t tile = tiles.begin; tile < end; ++tile) source_.prefetch_tile(spans_, tile);
  }
}

void FfdHead::attend_always(int32_t split) const {
  const RowState split_state = state(split);
  // attend() clears the sums of values when there is something to add: often never.
  clear(split_state, num_rows_, 0);
  const Span tiles = split_tiles(split);
  for (const SpanPart part : {SpanPart::kSink, SpanPart::kRecent}) {
    const Span range =
        intersect(tiles, part == SpanPart::kSink ? spans_.sink_tiles : spans_.recent_tiles);
    if (range.begin == range.end) continue;
    attend(split, part, [&](const auto& add) {
      for (int64_t tile = range.begin; tile < range.end; ++tile) add(tile);
    });
  }
  std::copy_n(split_state.m, num_rows_, run_.layout.always_max(head_idx_, split));
}

// for_tiles(add) calls add(tile) for every tile.
template <class ForTiles>
void FfdHead::attend(int32_t split, SpanPart part, const ForTiles& for_tiles) const {
  const QueryRows quantized = query_rows(true);
  const QueryRows recent = query_rows(false);
  const RowState split_state = state(split);
  PlaneScores scores(format_, quantized.q, num_rows_);
  TileBatch batch(source_, spans_, quantized, recent, split_state, part,
                  run_.use_plane_scores ? &scores : nullptr);
  // A state that has nothing yet: its sums have never been cleared.
  bool must_clear =
      std::count(split_state.l, split_state.l + num_rows_, 0.0f) == int64_t{num_rows_};
  for_tiles([&](int64_t tile) {
    if (must_clear) clear(split_state, num_rows_, format_.value_dim);
    must_clear = false;
    batch.add(tile);
  });
  batch.flush();
}

void FfdHead::pseudo_max(float* rows) const {
  std::fill_n(rows, num_rows_, kNothing);
  if (run_.desc.method == Method::kDense) return;
  for (int32_t split = 0; split < num_splits(); ++split) {
    const float* split_max = run_.layout.always_max(head_idx_, split);
    for (int32_t r = 0; r < num_rows_; ++r) rows[r] = std::max(rows[r], split_max[r]);
  }
}

Span FfdHead::scanned_tiles(const Span& tiles) const {
  return scans() ? intersect(tiles, spans_.scan_tiles) : Span{};
}

void FfdHead::begin_candidates(int32_t split) const {
  const Span tiles = split_tiles(split);
  uint32_t* kept = run_.layout.kept_words(head_idx_, split);
  std::fill_n(kept, run_.layout.words_per_split(), 0u);
  const auto keep = [&](const Span& part) {
    const Span range = intersect(tiles, part);
    set_bits(kept, range.begin - tiles.begin, range.end - tiles.begin);
  };
  keep(spans_.sink_tiles);
  keep(spans_.recent_tiles);
  if (!scans()) keep(spans_.scan_tiles);
}

void FfdHead::attend_kept(int32_t split, const Span& tiles) const {
  const int64_t first_tile = split_tiles(split).begin;
  const uint32_t* kept = run_.layout.kept_words(head_idx_, split);
  const int64_t first_word = tiles.begin / 32;
  const int64_t end_word = ceil_div(tiles.end, 32);
  const auto is_empty = [](uint32_t word) { return word == 0; };
  if (std::all_of(kept + first_word - first_tile / 32, kept + end_word - first_tile / 32,
                  is_empty)) {
    return;
  }
  attend(split, SpanPart::kBetween, [&](const auto& add) {
    for (int64_t word = first_word; word < end_word; ++word) {
      for (uint32_t bits = kept[word - first_tile / 32]; bits != 0; bits &= bits - 1) {
        add(word * 32 + std::countr_zero(bits));
      }
    }
  });
}

void FfdHead::scan_thresholds(float* rows) const {
  pseudo_max(rows);
  for (int32_t r = 0; r < num_rows_; ++r) {
    rows[r] = uncapped_threshold(rows[r], run_.desc.ffd, run_.desc.soft_cap);
  }
}

void FfdHead::fold_page(int64_t page, int32_t first_row, const float* thresholds,
                        FoldedRows& folded) const {
  PageGrid grid;
  load_page_grid(format_, source_.chunk(page), grid);
  ScanRows rows;
  rows.num_rows = std::min(kMaxScanRows, num_rows_ - first_row);
  rows.padded_dim = format_.padded_dim();
  rows.q = run_.layout.q_plane(head_idx_) + int64_t{first_row} * rows.padded_dim;
  rows.thresholds = thresholds + first_row;
  rows.softmax_scale = run_.desc.softmax_scale;
  rows.margin_sigmas = run_.desc.ffd.margin_sigmas;
  rows.certified = run_.desc.ffd.certified;
  fold_rows(grid, rows, folded);
}

void FfdHead::keep_hits(int32_t split, const Span& tiles, int32_t first_row, int32_t num_rows,
                        const uint16_t* masks, TileQueue& found) const {
  // Most pages have no hit; reading their masks tile by tile took a tenth of the scan.
  const auto* end = masks + (tiles.end - tiles.begin) * num_rows;
  if (std::accumulate(masks, end, 0u, std::bit_or<>()) == 0) return;
  uint32_t* kept = run_.layout.kept_words(head_idx_, split);
  const int64_t first_tile = split_tiles(split).begin;
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile, masks += num_rows) {
    if (!has_candidate(masks, first_row, num_rows, tile * kTileTokens)) continue;
    set_bits(kept, tile - first_tile, tile - first_tile + 1);
    found.push(source_, tile);
  }
}

// masks: of a tile that starts at `token`, hits of the rows from first_row on.
bool FfdHead::has_candidate(const uint16_t* masks, int32_t first_row, int32_t num_rows,
                            int64_t token) const {
  uint32_t any = 0;
  if (token >= spans_.queries[spans_.query_len - 1].begin) {  // the largest
    for (int32_t r = 0; r < num_rows; ++r) any |= masks[r];
  } else {
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t query_idx = (first_row + r) / run_.layout.group();
      any |= masks[r] & hits_from(spans_.queries[query_idx].begin - token);
    }
  }
  return any != 0;
}

}  // namespace longdecode::cpu
