// Which tokens a query token sees, which of them are always attended, and which tiles that makes:
// arithmetic on lengths alone (attention.h: FfdOptions; design: selection depends on nothing else).
#ifndef LONGDECODE_CPU_FFD_SPANS_H_
#define LONGDECODE_CPU_FFD_SPANS_H_

#include <cstdint>

#include "longdecode/attention.h"

namespace longdecode::cpu {

// Of one query token: visible [begin, end), always attended [begin, sink_end) and
// [recent_begin, end). begin <= sink_end <= recent_begin <= end.
struct QuerySpan {
  int64_t begin = 0;
  int64_t sink_end = 0;
  int64_t recent_begin = 0;
  int64_t end = 0;
};

// Tiles or tokens [begin, end).
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  bool contains(int64_t i) const { return begin <= i && i < end; }
};

struct SequenceSpans {
  int32_t query_len = 0;
  int64_t kv_len = 0;
  int64_t num_quantized = 0;  // tokens whose keys are in the planes
  QuerySpan queries[kMaxQueryLen];
  // Tiles that hold an always attended token of some query token; the two may overlap.
  Span sink_tiles;
  Span recent_tiles;
  // Tiles visible to some query token, quantised, and in neither of the two. Every query token
  // sees all tokens there but those before its sliding window: num_quantized is at most kv_len -
  // kQuantizeLag, which no query token precedes.
  Span scan_tiles;

  bool always_kept(int64_t tile) const {
    return sink_tiles.contains(tile) || recent_tiles.contains(tile);
  }
};

// kDense: every visible token is always attended, as a recent token.
SequenceSpans make_spans(const DecodeDesc& desc, int64_t kv_len, int32_t query_len);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_SPANS_H_
