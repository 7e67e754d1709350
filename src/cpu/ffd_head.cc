#include "cpu/ffd_head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/integer_math.h"
#include "cpu/paged_rows.h"

namespace longdecode::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int32_t kMaxRows = kMaxQueryLen * 16;  // 16 heads per kv head
constexpr int32_t kMaxTilesPerPage = kMaxPlanePageSize / kTileTokens;
// Always attended tiles are asked for this many tiles ahead: the first ones have nothing to hide
// behind.
constexpr int64_t kTilesAhead = 4;
constexpr int64_t kPagesAhead = 2;  // of the scan; one page: 5 to 10% slower
// Tiles that the scan of a split asks for when it finds them; they wait in L2 until it ends (6 KB
// each at head_dim 128).
constexpr int32_t kMaxTilesAsked = 64;

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

// The chunk of a page to come on its way into L2 while a page is scanned, in equal parts: a core
// keeps 16 lines in flight.
class ChunkPrefetch {
 public:
  static constexpr int32_t kParts = 4;
  ChunkPrefetch(const uint8_t* chunk, int64_t num_bytes)
      : next_(chunk), end_(chunk + num_bytes), part_bytes_(round_up(num_bytes / kParts, 64)) {}
  // Always inline: see ffd_tile_batch.cc.
  __attribute__((always_inline)) void ask_part() {
    const uint8_t* stop = std::min(next_ + part_bytes_, end_);
    for (; next_ < stop; next_ += 64) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const uint8_t* next_;
  const uint8_t* end_;
  int64_t part_bytes_;
};

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

void FfdHead::pack_queries() const {
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
}

void FfdHead::attend_always(int32_t split) const {
  const RowState split_state = state(split);
  clear(split_state, num_rows_, format_.value_dim);
  const Span tiles = split_tiles(split);
  const QueryRows quantized = query_rows(true);
  const QueryRows recent = query_rows(false);
  const auto attend = [&](const Span& part_tiles, SpanPart part) {
    const Span range = intersect(tiles, part_tiles);
    if (range.begin == range.end) return;
    TileBatch batch(source_, spans_, quantized, recent, split_state, part);
    int64_t ahead = range.begin;
    for (int64_t tile = range.begin; tile < range.end; ++tile) {
      for (; ahead < std::min(tile + kTilesAhead, range.end); ++ahead) {
        source_.prefetch_tile(spans_, ahead);
      }
      batch.add(tile);
    }
    batch.flush();
  };
  attend(spans_.sink_tiles, SpanPart::kSink);
  attend(spans_.recent_tiles, SpanPart::kRecent);
  std::copy_n(split_state.m, num_rows_, run_.layout.always_max(head_idx_, split));
}

void FfdHead::pseudo_max(float* rows) const {
  std::fill_n(rows, num_rows_, kNothing);
  if (run_.desc.method == Method::kDense) return;
  for (int32_t split = 0; split < num_splits(); ++split) {
    const float* split_max = run_.layout.always_max(head_idx_, split);
    for (int32_t r = 0; r < num_rows_; ++r) rows[r] = std::max(rows[r], split_max[r]);
  }
}

void FfdHead::attend_candidates(int32_t split) const {
  const Span tiles = split_tiles(split);
  const Span between = intersect(tiles, spans_.scan_tiles);
  uint32_t* kept = run_.layout.kept_words(head_idx_, split);
  std::fill_n(kept, run_.layout.words_per_split(), 0u);
  for (const Span& always : {spans_.sink_tiles, spans_.recent_tiles}) {
    const Span range = intersect(tiles, always);
    set_bits(kept, range.begin - tiles.begin, range.end - tiles.begin);
  }
  int32_t num_asked = 0;
  if (!scans()) {
    set_bits(kept, between.begin - tiles.begin, between.end - tiles.begin);
  } else if (between.begin < between.end) {
    num_asked = scan(between, tiles.begin, kept);
  }

  const QueryRows quantized = query_rows(true);
  const QueryRows recent = query_rows(false);
  const RowState split_state = state(split);
  TileBatch batch(source_, spans_, quantized, recent, split_state, SpanPart::kBetween);
  int64_t pending = -1;  // one tile behind, so that the next one is on its way
  for (int64_t word = 0; word < run_.layout.words_per_split(); ++word) {
    for (uint32_t bits = kept[word]; bits != 0; bits &= bits - 1) {
      const int64_t tile = tiles.begin + word * 32 + std::countr_zero(bits);
      if (spans_.scan_tiles.contains(tile) && --num_asked < 0) {
        source_.prefetch_tile(spans_, tile);
      }
      if (pending >= 0) batch.add(pending);
      pending = tile;
    }
  }
  if (pending >= 0) batch.add(pending);
  batch.flush();
  if (counts()) count(split);
}

int32_t FfdHead::scan(const Span& tiles, int64_t first_tile, uint32_t* kept) const {
  float thresholds[kMaxRows];
  pseudo_max(thresholds);
  for (int32_t r = 0; r < num_rows_; ++r) {
    thresholds[r] = uncapped_threshold(thresholds[r], run_.desc.ffd, run_.desc.soft_cap);
  }
  const int64_t tiles_per_page = format_.page_size / kTileTokens;
  int32_t num_asked = 0;
  for (int64_t tile = tiles.begin; tile < tiles.end;) {
    const int64_t page = tile / tiles_per_page;
    const Span part = intersect(tiles, {tile, (page + 1) * tiles_per_page});
    const bool has_ahead = part.end + (kPagesAhead - 1) * tiles_per_page < tiles.end;
    ChunkPrefetch ahead(has_ahead ? source_.chunk(page + kPagesAhead) : nullptr,
                        has_ahead ? format_.chunk_bytes() : 0);
    uint64_t hits = scan_page(
        page, {tile - page * tiles_per_page, part.end - page * tiles_per_page}, thresholds, ahead);
    for (; hits != 0; hits &= hits - 1) {
      const int64_t hit = page * tiles_per_page + std::countr_zero(hits);
      set_bits(kept, hit - first_tile, hit - first_tile + 1);
      if (num_asked == kMaxTilesAsked) continue;
      source_.prefetch_tile(spans_, hit);
      ++num_asked;
    }
    tile = part.end;
  }
  return num_asked;
}

// tiles: of the page. The bits of the tiles that hold a candidate of some row.
uint64_t FfdHead::scan_page(int64_t page, const Span& tiles, const float* thresholds,
                            ChunkPrefetch& ahead) const {
  uint64_t hits = 0;
  const uint8_t* chunk = source_.chunk(page);
  ahead.ask_part();
  PageGrid grid;
  load_page_grid(format_, chunk, grid);
  FoldedRows folded;
  ScanRows rows;
  rows.padded_dim = format_.padded_dim();
  rows.softmax_scale = run_.desc.softmax_scale;
  rows.margin_sigmas = run_.desc.ffd.margin_sigmas;
  rows.certified = run_.desc.ffd.certified;
  const int64_t last_begin = spans_.queries[spans_.query_len - 1].begin;  // the largest
  for (int32_t first = 0; first < num_rows_; first += kMaxScanRows) {
    rows.num_rows = std::min(kMaxScanRows, num_rows_ - first);
    rows.q = run_.layout.q_plane(head_idx_) + int64_t{first} * rows.padded_dim;
    rows.thresholds = thresholds + first;
    fold_rows(grid, rows, folded);
    ahead.ask_part();
    uint16_t masks[kMaxTilesPerPage * kMaxScanRows];
    run_.scan_tiles(chunk, format_.num_blocks(), static_cast<int32_t>(tiles.begin),
                    static_cast<int32_t>(tiles.end), folded, rows.num_rows, masks);
    ahead.ask_part();
    const uint16_t* mask = masks;
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile, mask += rows.num_rows) {
      const int64_t token = page * format_.page_size + tile * kTileTokens;
      uint32_t any = 0;
      if (token >= last_begin) {
        for (int32_t r = 0; r < rows.num_rows; ++r) any |= mask[r];
      } else {
        for (int32_t r = 0; r < rows.num_rows; ++r) {
          const int32_t query_idx = (first + r) / run_.layout.group();
          any |= mask[r] & hits_from(spans_.queries[query_idx].begin - token);
        }
      }
      hits |= uint64_t{any != 0} << tile;
    }
  }
  ahead.ask_part();
  return hits;
}

}  // namespace longdecode::cpu
