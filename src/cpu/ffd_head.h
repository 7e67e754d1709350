// The work of one (sequence, kv head) of an FFD run, split by split.
#ifndef LONGDECODE_CPU_FFD_HEAD_H_
#define LONGDECODE_CPU_FFD_HEAD_H_

#include <cstdint>

#include "cpu/ffd_layout.h"
#include "cpu/ffd_scan.h"
#include "cpu/ffd_spans.h"
#include "cpu/ffd_tile_batch.h"
#include "cpu/tile_attention.h"
#include "longdecode/attention.h"

namespace longdecode::cpu {

struct FfdRun {
  const DecodeDesc& desc;
  const DecodeArgs& args;
  const FfdLayout& layout;
  ScanTiles scan_tiles = nullptr;
  bool use_plane_scores = false;
};

// Order: begin, attend_always of every split, for every split begin_candidates, scan_split
// (ffd_split_scan.h) where scan_tiles says so, attend_kept, then finish. The splits of one phase
// may run in parallel.
class FfdHead {
 public:
  FfdHead(const FfdRun& run, int32_t batch_idx, int32_t kv_head);

  int32_t num_splits() const;  // of this sequence; 0 when it has no tokens or no queries
  int32_t num_rows() const { return num_rows_; }
  Span split_tiles(int32_t split) const;  // those that some query token sees
  const HeadSource& source() const { return source_; }

  // Packs the queries and asks memory for what attend_always reads.
  void begin() const;
  // Starts the split's state and attends its sink and recent tokens; their largest scores become
  // the split's share of the pseudo-max.
  void attend_always(int32_t split) const;
  // Keeps what is always attended, and without a scan everything.
  void begin_candidates(int32_t split) const;
  // Those of `tiles` that a scan decides about, the same for all heads of a sequence; none where
  // every tile is kept.
  Span scanned_tiles(const Span& tiles) const;
  void scan_thresholds(float* rows) const;  // [num_rows()]
  // Rows [first_row, first_row + kMaxScanRows) folded for a page.
  void fold_page(int64_t page, int32_t first_row, const float* thresholds,
                 FoldedRows& folded) const;
  // masks: hits of the tiles of a page that a scan of rows from first_row on found. Keeps those
  // with a hit.
  void keep_hits(int32_t split, const Span& tiles, int32_t first_row, int32_t num_rows,
                 const uint16_t* masks, TileQueue& found) const;
  // Attends what is kept of `tiles`, whole words of kept tiles, but for what attend_always has
  // attended. In order, each tile of the split once.
  void attend_kept(int32_t split, const Span& tiles) const;
  // What the statistics need of a split of which all is attended.
  void count(int32_t split) const;
  // Merges the splits; writes every row of the output and the statistics.
  void finish() const;

 private:
  bool scans() const;  // false: every tile is kept
  QueryRows query_rows(bool quantized) const;
  RowState state(int32_t split) const;
  template <class ForTiles>
  void attend(int32_t split, SpanPart part, const ForTiles& for_tiles) const;
  void pseudo_max(float* rows) const;  // [num_rows_]
  bool has_candidate(const uint16_t* masks, int32_t first_row, int32_t num_rows,
                     int64_t token) const;
  bool counts() const;  // a statistic of count() is wanted
  void finish_row_at(int32_t query_idx, int32_t head, float pseudo_max) const;
  void write_head_statistics() const;
  int64_t num_dropped(int32_t query_idx) const;
  bool is_kept(int64_t tile) const;

  const FfdRun& run_;
  const KvFormat& format_;
  int32_t batch_idx_;
  int32_t kv_head_;
  int64_t head_idx_;
  int32_t num_rows_ = 0;
  HeadSource source_;
  SequenceSpans spans_;
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_HEAD_H_
