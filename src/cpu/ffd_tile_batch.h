// Gathers tiles of one kv head, from planes or ring, and attends them a batch at a time.
#ifndef LONGDECODE_CPU_FFD_TILE_BATCH_H_
#define LONGDECODE_CPU_FFD_TILE_BATCH_H_

#include <cstdint>

#include "cpu/ffd_spans.h"
#include "cpu/paged_rows.h"
#include "cpu/plane_scores.h"
#include "cpu/tile_attention.h"
#include "cpu/tile_prefetch.h"
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

// Quantised tiles that a scan has found, on their way into L2 a few lines at a time: a core keeps
// 16 in flight, and a tile has about 100.
class TileQueue {
 public:
  explicit TileQueue(const KvLayerView& kv)
      : residual_lines_(kv.format.residual_tile_bytes() / kLineBytes),
        lines_per_value_((kv.format.value_dim * dtype_bytes(kv.format.dtype) + kLineBytes - 1) /
                         kLineBytes),
        value_stride_(stride_bytes(kv.v, 2)) {}

  // Does nothing when kCapacity have been pushed.
  void push(const HeadSource& source, int64_t tile);
  // Always inline: see ffd_tile_batch.cc.
  __attribute__((always_inline)) void ask(int64_t num_lines) {
    for (; num_lines > 0 && next_ < num_tiles_; --num_lines) {
      const Entry& entry = entries_[next_];
      if (line_ < residual_lines_) {
        __builtin_prefetch(entry.residuals + line_ * kLineBytes, 0, 2);
      } else {
        const int64_t i = line_ - residual_lines_;
        __builtin_prefetch(
            entry.values + i / lines_per_value_ * value_stride_ + i % lines_per_value_ * kLineBytes,
            0, 2);
      }
      if (++line_ < residual_lines_ + kTileTokens * lines_per_value_) continue;
      line_ = 0;
      ++next_;
    }
  }
  __attribute__((always_inline)) void finish() { ask(int64_t{1} << 30); }

 private:
  static constexpr int64_t kLineBytes = 64;
  // What is left at the end of a scan is asked for at once: more tiles wait longer for that than
  // they gain (10% of 16384 tokens: 64 tiles a tenth slower, 128 more).
  static constexpr int32_t kCapacity = 32;
  struct Entry {
    const uint8_t* residuals;
    const uint8_t* values;
  };
  Entry entries_[kCapacity];
  int64_t residual_lines_;
  int64_t lines_per_value_;
  int64_t value_stride_;
  int32_t num_tiles_ = 0;
  int32_t next_ = 0;  // being asked for
  int64_t line_ = 0;  // of it, next
};

// The tokens that a batch lets each query token see.
enum class SpanPart { kSink, kRecent, kBetween };
Span part_of(const QuerySpan& span, SpanPart part);

// Attends the tiles given to it in order, a batch at a time and one batch late: memory is asked for
// a batch while the one before it is attended.
class TileBatch {
 public:
  // quantized: rows packed for fp32 keys; recent: for keys of format.dtype. scores: makes the
  // scores of quantised tiles, or nullptr: their keys are made fp32 first.
  TileBatch(const HeadSource& source, const SequenceSpans& spans, const QueryRows& quantized,
            const QueryRows& recent, const RowState& state, SpanPart part, PlaneScores* scores);

  void add(int64_t tile);
  void flush();

 private:
  static constexpr int32_t kMaxTiles = kTileCapacity / kTileTokens;
  // The fp32 keys of two tiles and their values stay in L1 at head_dim 128.
  static constexpr int32_t kTilesOfKeys = 2;

  struct Batch {
    int64_t tiles[kMaxTiles];
    const void* k_rows[kTileCapacity];  // quantised: the residuals, 1 / 16 of a tile each
    const void* v_rows[kTileCapacity];
    TokenRange ranges[kMaxQueryLen];
    int32_t num_tokens = 0;
    bool is_quantized = false;
    bool is_partial = false;  // tokens outside ranges are invisible: a batch of one tile
  };

  void rotate();
  void add_rows(int64_t tile, int32_t num_tokens, Batch& batch) const;
  void attend(Batch& batch, const Batch& next);
  bool make_scores(const Batch& batch, TilePrefetch& keys_ahead, TilePrefetch& values_ahead);
  void make_keys(Batch& batch);
  int64_t key_bytes(const Batch& batch) const;

  const HeadSource& source_;
  const SequenceSpans& spans_;
  const QueryRows& quantized_rows_;
  const QueryRows& recent_rows_;
  const RowState& state_;
  SpanPart part_;
  PlaneScores* scores_;

  Batch batches_[2];
  int32_t filling_ = 0;
  int64_t grid_page_ = -1;    // that grid_ is of
  int64_t scores_page_ = -1;  // that scores_ has taken
  bool is_finite_ = true;     // what take_page said
  PageGrid grid_;
  alignas(64) float keys_[kTileCapacity * kMaxPlaneDim];
  alignas(64) float tile_scores_[PlaneScores::kMaxRows * kTileCapacity];
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_TILE_BATCH_H_
