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
  for (int64_t i = 0; i < num_bytes; i += kLineBytes) __builtin_prefetch(bytes + i);
}

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
    prefetch(residuals(page) + tile % (format.page_size / kTileTokens) * tile_bytes, tile_bytes);
  }
  const int64_t key_bytes = format.key_dim * dtype_bytes(format.dtype);
  const int64_t value_bytes = format.value_dim * dtype_bytes(kv->v.dtype);
  for (int64_t token = first; token < end; ++token) {
    if (!quantized) prefetch(recent_key(token), key_bytes);
    prefetch(value(token), value_bytes);
  }
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
                     SpanPart part)
    : source_(source),
      spans_(spans),
      quantized_rows_(quantized),
      recent_rows_(recent),
      state_(state),
      part_(part) {}

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
  // Ranges are indices into the rows of a batch, so a partly visible tile is a batch of its own.
  if (quantized != quantized_ || !all_visible || num_tokens_ == kTiles * kTileTokens) flush();
  quantized_ = quantized;
  add_rows(tile, num_tokens);
  if (all_visible) return;
  std::copy_n(ranges, spans_.query_len, ranges_);
  visible_ = ranges_;
  flush();
}

void TileBatch::add_rows(int64_t tile, int32_t num_tokens) {
  const KvFormat& format = source_.kv->format;
  const int64_t first = tile * kTileTokens;
  for (int32_t j = 0; j < num_tokens; ++j) v_rows_[num_tokens_ + j] = source_.value(first + j);
  if (quantized_) {
    const int64_t page = first / format.page_size;
    if (page != grid_page_) load_page_grid(format, source_.chunk(page), grid_);
    grid_page_ = page;
    const int64_t stride = format.padded_dim();
    float* keys = keys_ + num_tokens_ * stride;
    dequantize_tile(format, grid_, source_.chunk(page), source_.residuals(page),
                    static_cast<int32_t>(tile % (format.page_size / kTileTokens)), keys, stride);
    for (int32_t j = 0; j < num_tokens; ++j) k_rows_[num_tokens_ + j] = keys + j * stride;
  } else {
    for (int32_t j = 0; j < num_tokens; ++j) {
      k_rows_[num_tokens_ + j] = source_.recent_key(first + j);
    }
  }
  num_tokens_ += num_tokens;
}

void TileBatch::flush() {
  if (num_tokens_ > 0) {
    const Tile tile{num_tokens_, k_rows_, v_rows_, visible_};
    attend_tile(tile, quantized_ ? quantized_rows_ : recent_rows_, state_, nullptr);
  }
  num_tokens_ = 0;
  visible_ = nullptr;
}

}  // namespace longdecode::cpu
