// Gathers tiles of one kv head, from planes or ring, and attends them a batch at a time.
#ifndef LONGDECODE_CPU_FFD_TILE_BATCH_H_
#define LONGDECODE_CPU_FFD_TILE_BATCH_H_

#include <cstdint>

#include "cpu/ffd_spans.h"
#include "cpu/tile_attention.h"
#include "cpu/two_plane.h"
#include "longdecode/attention.h"

namespace longdecode::cpu {

// Where the keys and values of one (sequence, kv head) are.
struct HeadSource {
  const KvLayerView* kv = nullptr;
  const int32_t* pages = nullptr;  // the sequence's row of the block table
  int32_t slot = 0;
  int32_t kv_head = 0;

  const uint8_t* chunk(int64_t page) const;
  const uint8_t* residuals(int64_t page) const;
  const void* recent_key(int64_t token) const;
  const void* value(int64_t token) const;
  // Into the caches: what attending a tile will read; `spans` says where its keys are.
  void prefetch_tile(const SequenceSpans& spans, int64_t tile) const;
};

// The tokens that a batch lets each query token see.
enum class SpanPart { kSink, kRecent, kBetween };
Span part_of(const QuerySpan& span, SpanPart part);

class TileBatch {
 public:
  // quantized: rows packed for fp32 keys; recent: for keys of format.dtype.
  TileBatch(const HeadSource& source, const SequenceSpans& spans, const QueryRows& quantized,
            const QueryRows& recent, const RowState& state, SpanPart part);

  void add(int64_t tile);
  void flush();

 private:
  // Small enough that the keys of a batch in fp32 and its values stay in L1 at head_dim 128.
  static constexpr int32_t kTiles = 2;

  void add_rows(int64_t tile, int32_t num_tokens);

  const HeadSource& source_;
  const SequenceSpans& spans_;
  const QueryRows& quantized_rows_;
  const QueryRows& recent_rows_;
  const RowState& state_;
  SpanPart part_;

  bool quantized_ = false;
  int32_t num_tokens_ = 0;
  const TokenRange* visible_ = nullptr;
  int64_t grid_page_ = -1;
  TokenRange ranges_[kMaxQueryLen];
  const void* k_rows_[kTiles * kTileTokens];
  const void* v_rows_[kTiles * kTileTokens];
  PageGrid grid_;
  alignas(64) float keys_[kTiles * kTileTokens * kMaxPlaneDim];
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_TILE_BATCH_H_
