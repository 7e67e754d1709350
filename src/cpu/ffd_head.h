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

class ChunkPrefetch;

struct FfdRun {
  const DecodeDesc& desc;
  const DecodeArgs& args;
  const FfdLayout& layout;
  ScanTiles scan_tiles = nullptr;
};

// Order: pack_queries, attend_always of every split, attend_candidates of every split, finish.
// The splits of one phase may run in parallel.
class FfdHead {
 public:
  FfdHead(const FfdRun& run, int32_t batch_idx, int32_t kv_head);

  int32_t num_splits() const;  // of this sequence; 0 when it has no tokens or no queries

  void pack_queries() const;
  // Starts the split's state and attends its sink and recent tokens; their largest scores become
  // the split's share of the pseudo-max.
  void attend_always(int32_t split) const;
  // Scans the other tiles, attends those with a candidate, and what attend_always left of its own.
  void attend_candidates(int32_t split) const;
  // Merges the splits; writes every row of the output and the statistics.
  void finish() const;

 private:
  Span split_tiles(int32_t split) const;  // those that some query token sees
  bool scans() const;                     // false: every tile is kept
  QueryRows query_rows(bool quantized) const;
  RowState state(int32_t split) const;
  void pseudo_max(float* rows) const;  // [num_rows_]
  // Returns how many of the tiles that it found first it has asked memory for.
  int32_t scan(const Span& tiles, int64_t first_tile, uint32_t* kept) const;
  uint64_t scan_page(int64_t page, const Span& tiles, const float* thresholds,
                     ChunkPrefetch& ahead) const;
  bool counts() const;  // a statistic of count() is wanted
  void count(int32_t split) const;
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
