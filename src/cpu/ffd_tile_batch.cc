#include "cpu/ffd_tile_batch.h"

#include <algorithm>

#include "cpu/paged_rows.h"

namespace longdecode::cpu {
namespace {

constexpr int64_t kLineBytes = 64;

// Always inline: g++ 12 takes a function that only prefetches for one without effects and drops the
// call.
inline __attribute__((always_inline)) void prefetch(const void* from, int64_t num_bytes) {
  const char* bytes = static_cast<const char*>(from);
  for (int64_t i = 0; i < num_bytes; i += kLineBytes) __builtin_prefetch(bytes + i, 0, 2);
}

// A prefetch whose translation is not in the TLB is dropped (seen on a virtual machine: tiles asked
// for by prefetches alone took four times as long to attend); a read brings it.
void read_byte(const void* from) { (void)*static_cast<const volatile uint8_t*>(from); }

}  // namespace

const uint8_t* HeadSource::chunk(int64_t page) const {
  return kv->chunks + pages[page] * kv->chunk_page_stride_bytes +
         kv_head * kv->format.chunk_bytes();
}

const uint8_t* HeadSource::residuals(int64_t page) const {
  return kv->residuals + pages[page] * kv->residual_page_stride_bytes +
         kv_head * kv->format.residual_bytes();
}

const void* HeadSource::recent_key(int64_t token) const {
  return row_address(kv->recent_k, slot, kv_head, token % kv->format.recent_ring_tokens());
}

const void* HeadSource::value(int64_t token) const {
  const int32_t page_size = kv->format.page_size;
  return row_address(kv->v, pages[token / page_size], kv_head, token % page_size);
}

void HeadSource::prefetch_tile(const SequenceSpans& spans, int64_t tile) const {
  const KvFormat& format = kv->format;
  const int64_t first = tile * kTileTokens;
  const int64_t end = std::min(first + kTileTokens, spans.kv_len);
  const bool quantized = first < spans.num_quantized;
  if (quantized) {
    const int64_t page = first / format.page_size;
    const int64_t tile_bytes = format.residual_tile_bytes();
    const int64_t tile_in_page = tile % (format.page_size / kTileTokens);
    read_byte(residuals(page) + tile_in_page * tile_bytes);
    prefetch(residuals(page) + tile_in_page * tile_bytes, tile_bytes);
    if (!spans.scan_tiles.contains(tile)) {  // nobody has read its codes
      prefetch(chunk(page) + tile_in_page * tile_bytes / 4, tile_bytes / 4);
      prefetch(chunk(page) + format.code_bytes(), format.chunk_bytes() - format.code_bytes());
    }
  }
  const int64_t key_bytes = format.key_dim * dtype_bytes(format.dtype);
  const int64_t value_bytes = format.value_dim * dtype_bytes(kv->v.dtype);
  const char* values = static_cast<const char*>(value(first));
  const int64_t value_stride = stride_bytes(kv->v, 2);
  read_byte(values);
  for (int64_t token = first; token < end; ++token) {
    if (!quantized) prefetch(recent_key(token), key_bytes);
    prefetch(values + (token - first) * value_stride, value_bytes);
  }
}

void TileQueue::push(const HeadSource& source, int64_t tile) {
  if (num_tiles_ == kCapacity) return;
  const KvFormat& format = source.kv->format;
  const int64_t tiles_per_page = format.page_size / kTileTokens;
  Entry& entry = entries_[num_tiles_++];
  entry.residuals = source.residuals(tile / tiles_per_page) +
                    tile % tiles_per_page * format.residual_tile_bytes();
  entry.values = static_cast<const uint8_t*>(source.value(tile * kTileTokens));
  read_byte(entry.residuals);
  read_byte(entry.values);
}

Span part_of(const QuerySpan& span, SpanPart part) {
  switch (part) {
    case SpanPart::kSink:
      return {span.begin, span.sink_end};
    case SpanPart::kRecent:
      return {span.recent_begin, span.end};
    case SpanPart::kBetween:
      return {span.sink_end, span.recent_begin};
  }
  return {};
}

TileBatch::TileBatch(const HeadSource& source, const SequenceSpans& spans,
                     const QueryRows& quantized, const QueryRows& recent, const RowState& state,
                     SpanPart part, PlaneScores* scores)
    : source_(source),
      spans_(spans),
      quantized_rows_(quantized),
      recent_rows_(recent),
      state_(state),
      part_(part),
      scores_(scores) {}

void TileBatch::add(int64_t tile) {
  const int64_t first = tile * kTileTokens;
  const auto num_tokens =
      static_cast<int32_t>(std::min<int64_t>(kTileTokens, spans_.kv_len - first));
  bool any_visible = false;
  bool all_visible = true;
  TokenRange ranges[kMaxQueryLen];
  for (int32_t t = 0; t < spans_.query_len; ++t) {
    const Span span = part_of(spans_.queries[t], part_);
    ranges[t].begin = static_cast<int32_t>(std::clamp<int64_t>(span.begin - first, 0, num_tokens));
    ranges[t].end = static_cast<int32_t>(std::clamp<int64_t>(span.end - first, 0, num_tokens));
    any_visible |= ranges[t].begin < ranges[t].end;
    all_visible &= ranges[t].begin == 0 && ranges[t].end == num_tokens;
  }
  if (!any_visible) return;
  const bool quantized = first < spans_.num_quantized;
  const int32_t capacity =
      (quantized && scores_ == nullptr ? kTilesOfKeys : kMaxTiles) * kTileTokens;
  const Batch& last = batches_[filling_];
  if (last.num_tokens > 0 && (quantized != last.is_quantized || last.is_partial || !all_visible ||
                              last.num_tokens == capacity)) {
    rotate();
  }
  Batch& batch = batches_[filling_];
  batch.is_quantized = quantized;
  add_rows(tile, num_tokens, batch);
  if (all_visible) return;
  std::copy_n(ranges, spans_.query_len, batch.ranges);
  batch.is_partial = true;
}

void TileBatch::add_rows(int64_t tile, int32_t num_tokens, Batch& batch) const {
  const KvFormat& format = source_.kv->format;
  const int64_t first = tile * kTileTokens;
  const void** k_rows = batch.k_rows + batch.num_tokens;
  const void** v_rows = batch.v_rows + batch.num_tokens;
  batch.tiles[batch.num_tokens / kTileTokens] = tile;
  // The tokens of a tile are neighbours in a page.
  const char* value = static_cast<const char*>(source_.value(first));
  const int64_t value_stride = stride_bytes(source_.kv->v, 2);
  for (int32_t j = 0; j < num_tokens; ++j) v_rows[j] = value + j * value_stride;
  if (batch.is_quantized) {
    const int64_t tiles_per_page = format.page_size / kTileTokens;
    const uint8_t* residuals = source_.residuals(tile / tiles_per_page) +
                               tile % tiles_per_page * format.residual_tile_bytes();
    const int64_t slice = key_bytes(batch);
    for (int32_t j = 0; j < num_tokens; ++j) k_rows[j] = residuals + j * slice;
  } else {
    for (int32_t j = 0; j < num_tokens; ++j) k_rows[j] = source_.recent_key(first + j);
  }
  batch.num_tokens += num_tokens;
}

int64_t TileBatch::key_bytes(const Batch& batch) const {
  const KvFormat& format = source_.kv->format;
  return batch.is_quantized ? format.padded_dim() : format.key_dim * dtype_bytes(format.dtype);
}

void TileBatch::flush() {
  rotate();
  rotate();
}

// Attends the older batch; its place is filled next.
void TileBatch::rotate() {
  Batch& older = batches_[filling_ ^ 1];
  if (older.num_tokens > 0) attend(older, batches_[filling_]);
  older.num_tokens = 0;
  older.is_partial = false;
  filling_ ^= 1;
}

void TileBatch::attend(Batch& batch, const Batch& next) {
  const KvFormat& format = source_.kv->format;
  const int64_t value_bytes = format.value_dim * dtype_bytes(format.dtype);
  Tile tile{batch.num_tokens, batch.k_rows, batch.v_rows,
            batch.is_partial ? batch.ranges : nullptr};
  if (batch.is_quantized && scores_ != nullptr) {
    // Keys first: they are what the next batch begins with.
    const Tile keys{next.num_tokens, next.k_rows, next.k_rows, nullptr};
    const Tile values{next.num_tokens, next.v_rows, next.v_rows, nullptr};
    TilePrefetch keys_ahead(next.num_tokens > 0 ? &keys : nullptr, key_bytes(next),
                            key_bytes(next));
    TilePrefetch values_ahead(next.num_tokens > 0 ? &values : nullptr, value_bytes, value_bytes);
    if (make_scores(batch, keys_ahead, values_ahead)) {
      tile.scores = tile_scores_;
    } else {
      make_keys(batch);
    }
    keys_ahead.finish();
    return attend_tile(tile, quantized_rows_, state_, values_ahead);
  }
  const Tile both{next.num_tokens, next.k_rows, next.v_rows, nullptr};
  TilePrefetch ahead(next.num_tokens > 0 ? &both : nullptr, key_bytes(next), value_bytes);
  if (batch.is_quantized) make_keys(batch);
  attend_tile(tile, batch.is_quantized ? quantized_rows_ : recent_rows_, state_, ahead);
}

bool TileBatch::make_scores(const Batch& batch, TilePrefetch& keys_ahead,
                            TilePrefetch& values_ahead) {
  const int64_t tiles_per_page = source_.kv->format.page_size / kTileTokens;
  for (int32_t i = 0; i * kTileTokens < batch.num_tokens; ++i) {
    const int64_t page = batch.tiles[i] / tiles_per_page;
    if (page != scores_page_) is_finite_ = scores_->take_page(source_.chunk(page));
    scores_page_ = page;
    if (!is_finite_) return false;
    scores_->score(source_.chunk(page), source_.residuals(page),
                   static_cast<int32_t>(batch.tiles[i] % tiles_per_page),
                   tile_scores_ + i * kTileTokens, keys_ahead, values_ahead);
  }
  return true;
}

void TileBatch::make_keys(Batch& batch) {
  const KvFormat& format = source_.kv->format;
  const int64_t tiles_per_page = format.page_size / kTileTokens;
  const int64_t stride = format.padded_dim();
  for (int32_t j = 0; j < batch.num_tokens; ++j) {
    float* keys = keys_ + j * stride;
    batch.k_rows[j] = keys;
    if (j % kTileTokens != 0) continue;
    const int64_t tile = batch.tiles[j / kTileTokens];
    const int64_t page = tile / tiles_per_page;
    if (page != grid_page_) load_page_grid(format, source_.chunk(page), grid_);
    grid_page_ = page;
    dequantize_tile(format, grid_, source_.chunk(page), source_.residuals(page),
                    static_cast<int32_t>(tile % tiles_per_page), keys, stride);
  }
}

}  // namespace longdecode::cpu
