// make_spans against the definition, token by token.
#include <gtest/gtest.h>

#include <vector>

#include "cpu/ffd_spans.h"

namespace longdecode::cpu {
namespace {

struct Expected {
  bool visible = false;
  bool always = false;
};

// attention.h: FfdOptions, sliding_window, causal.
Expected expected_token(const DecodeDesc& desc, int64_t kv_len, int32_t query_len, int32_t t,
                        int64_t token) {
  const int64_t position = kv_len - query_len + t;
  Expected e;
  e.visible = (!desc.causal || token <= position) &&
              (desc.sliding_window == 0 || token > position - desc.sliding_window);
  const int64_t quantized = desc.format.num_quantized_pages(kv_len) * desc.format.page_size;
  e.always = e.visible && (desc.method == Method::kDense || token < desc.ffd.sink_tokens ||
                           token > position - desc.ffd.recent_tokens || token >= quantized);
  return e;
}

void expect_definition(const DecodeDesc& desc, int64_t kv_len, int32_t query_len) {
  const SequenceSpans spans = make_spans(desc, kv_len, query_len);
  const int64_t num_tiles = (kv_len + kTileTokens - 1) / kTileTokens;
  std::vector<bool> tile_visible(static_cast<size_t>(num_tiles));
  std::vector<bool> tile_always(static_cast<size_t>(num_tiles));
  for (int32_t t = 0; t < query_len; ++t) {
    const QuerySpan& span = spans.queries[t];
    ASSERT_LE(span.begin, span.sink_end);
    ASSERT_LE(span.sink_end, span.recent_begin);
    ASSERT_LE(span.recent_begin, span.end);
    for (int64_t j = 0; j < kv_len; ++j) {
      const Expected e = expected_token(desc, kv_len, query_len, t, j);
      ASSERT_EQ(e.visible, span.begin <= j && j < span.end) << t << " " << j;
      const bool always =
          (span.begin <= j && j < span.sink_end) || (span.recent_begin <= j && j < span.end);
      ASSERT_EQ(e.always, always) << "query " << t << " token " << j;
      const auto tile = static_cast<size_t>(j / kTileTokens);
      tile_visible[tile] = tile_visible[tile] || e.visible;
      tile_always[tile] = tile_always[tile] || e.always;
    }
  }
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const bool always = tile_always[static_cast<size_t>(tile)];
    ASSERT_EQ(always, spans.always_kept(tile)) << tile;
    ASSERT_EQ(spans.scan_tiles.contains(tile), tile_visible[static_cast<size_t>(tile)] && !always)
        << tile;
  }
}

TEST(FfdSpans, FollowTheDefinition) {
  DecodeDesc desc;
  desc.format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 1, 64, 64);
  for (Method method : {Method::kFfd, Method::kDense}) {
    for (bool causal : {true, false}) {
      for (int64_t window : {0, 1, 37, 200, 100000}) {
        for (int32_t sinks : {0, 1, 16, 40, 5000}) {
          for (int32_t recent : {0, 1, 33, 128, INT32_MAX}) {
            desc.method = method;
            desc.causal = causal;
            desc.sliding_window = window;
            desc.ffd.sink_tokens = sinks;
            desc.ffd.recent_tokens = recent;
            for (int64_t kv_len : {0, 1, 7, 8, 72, 135, 136, 300}) {
              for (int32_t query_len : {0, 1, 3, 8}) {
                SCOPED_TRACE(testing::Message()
                             << "dense " << (method == Method::kDense) << " causal " << causal
                             << " window " << window << " sinks " << sinks << " recent " << recent
                             << " kv_len " << kv_len << " query_len " << query_len);
                ASSERT_NO_FATAL_FAILURE(expect_definition(desc, kv_len, query_len));
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace longdecode::cpu
