#include "cpu/ffd_spans.h"

#include <algorithm>

namespace longdecode::cpu {
namespace {

QuerySpan make_query_span(const DecodeDesc& desc, const SequenceSpans& spans, int32_t query_idx) {
  const int64_t position = spans.kv_len - spans.query_len + query_idx;
  QuerySpan span;
  span.end = desc.causal ? std::clamp<int64_t>(position + 1, 0, spans.kv_len) : spans.kv_len;
  if (desc.sliding_window > 0) {
    span.begin = std::clamp<int64_t>(position - desc.sliding_window + 1, 0, span.end);
  }
  if (desc.method == Method::kDense) {
    span.recent_begin = span.begin;
  } else {
    const int64_t recent = std::min(position - desc.ffd.recent_tokens + 1, spans.num_quantized);
    span.recent_begin = std::clamp(recent, span.begin, span.end);
  }
  span.sink_end = std::clamp<int64_t>(desc.ffd.sink_tokens, span.begin, span.recent_begin);
  return span;
}

// Grows `tiles` to cover tokens [begin, end).
void cover(int64_t begin, int64_t end, Span& tiles) {
  if (begin >= end) return;
  const int64_t first = begin / kTileTokens;
  const int64_t stop = (end + kTileTokens - 1) / kTileTokens;
  const bool empty = tiles.begin >= tiles.end;
  tiles.begin = empty ? first : std::min(tiles.begin, first);
  tiles.end = empty ? stop : std::max(tiles.end, stop);
}

}  // namespace

SequenceSpans make_spans(const DecodeDesc& desc, int64_t kv_len, int32_t query_len) {
  SequenceSpans spans;
  spans.query_len = query_len;
  spans.kv_len = kv_len;
  spans.num_quantized = desc.format.num_quantized_pages(kv_len) * desc.format.page_size;
  Span visible;
  for (int32_t t = 0; t < query_len; ++t) {
    const QuerySpan span = make_query_span(desc, spans, t);
    spans.queries[t] = span;
    cover(span.begin, span.sink_end, spans.sink_tiles);
    cover(span.recent_begin, span.end, spans.recent_tiles);
    cover(span.begin, span.end, visible);
  }
  const int64_t quantized_tiles = spans.num_quantized / kTileTokens;
  spans.scan_tiles.begin = std::max(visible.begin, spans.sink_tiles.end);
  spans.scan_tiles.end = std::min(quantized_tiles, visible.end);
  if (spans.recent_tiles.begin < spans.recent_tiles.end) {
    spans.scan_tiles.end = std::min(spans.scan_tiles.end, spans.recent_tiles.begin);
  }
  spans.scan_tiles.end = std::max(spans.scan_tiles.begin, spans.scan_tiles.end);
  return spans;
}

}  // namespace longdecode::cpu
