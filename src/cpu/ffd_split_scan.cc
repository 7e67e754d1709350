#include "cpu/ffd_split_scan.h"

#include <algorithm>

#include "base/integer_math.h"

namespace longdecode::cpu {
namespace {

constexpr int32_t kMaxRows = kMaxQueryLen * 16;  // 16 heads per kv head
constexpr int32_t kMaxTilesPerPage = kMaxPlanePageSize / kTileTokens;
// After that many tiles lines of chunks ahead and of found tiles are asked for again.
constexpr int32_t kTilesPerStep = 2;
constexpr int64_t kFoundLinesPerStep = 5;

// Chunks on their way into L2, kRuns at a time while as many are scanned, a line of each in turn: a
// core keeps 16 lines in flight, and each run gets a stream of the hardware's prefetcher.
class ChunkPrefetch {
 public:
  static constexpr int64_t kRuns = 4;

  // steps: calls of ask() for each chunk that is scanned. Grids come first: the first chunk's is
  // read before the last of the chunks now scanned.
  ChunkPrefetch(const KvFormat& format, int64_t steps)
      : num_lines_(ceil_div(format.chunk_bytes(), 64)),
        first_line_(format.step_offset_bytes() / 64),
        lines_per_step_(ceil_div(num_lines_, kRuns * steps)) {}
  // The next kRuns chunks are chunk(0), chunk(1), ...; nullptr: none.
  template <class Chunk>
  void begin(const Chunk& chunk) {
    for (int64_t run = 0; run < kRuns; ++run) {
      runs_[run] = chunk(run);
      if (runs_[run] == nullptr && run > 0) runs_[run] = runs_[run - 1];
    }
    line_ = 0;
  }
  // Always inline: see ffd_tile_batch.cc.
  __attribute__((always_inline)) void ask() {
    const int64_t stop = runs_[0] == nullptr ? 0 : std::min(line_ + lines_per_step_, num_lines_);
    for (; line_ < stop; ++line_) {
      int64_t line = first_line_ + line_;
      if (line >= num_lines_) line -= num_lines_;
      for (const uint8_t* run : runs_) __builtin_prefetch(run + 64 * line, 0, 2);
    }
  }

 private:
  const uint8_t* runs_[kRuns] = {};
  int64_t num_lines_;
  int64_t first_line_;
  int64_t lines_per_step_;  // of each run
  int64_t line_ = 0;
};

// The chunks of a task in the order of its scan.
class ChunkWalk {
 public:
  ChunkWalk(const FfdHead& head, const FfdTask& task, int64_t tiles_per_page)
      : source_(head.source()), task_(task) {
    const Span tiles = head.scanned_tiles(task.tiles);
    if (tiles.begin == tiles.end) return;
    first_page_ = tiles.begin / tiles_per_page;
    num_chunks_ = (ceil_div(tiles.end, tiles_per_page) - first_page_) * task.num_heads;
  }
  int64_t num_chunks() const { return num_chunks_; }
  // 32 bits: a division of 64 takes longer.
  int64_t page(int64_t i) const {
    return first_page_ + static_cast<uint32_t>(i) / static_cast<uint32_t>(task_.num_heads);
  }
  int32_t head(int64_t i) const {
    return static_cast<int32_t>(static_cast<uint32_t>(i) % static_cast<uint32_t>(task_.num_heads));
  }
  const uint8_t* chunk(int64_t i) const {  // nullptr past the end
    if (i >= num_chunks_) return nullptr;
    HeadSource source = source_;
    source.kv_head = task_.first_head + head(i);
    return source.chunk(page(i));
  }

 private:
  HeadSource source_;
  FfdTask task_;
  int64_t first_page_ = 0;
  int64_t num_chunks_ = 0;
};

class SplitScan {
 public:
  SplitScan(const FfdRun& run, const FfdTask& task, const FfdHeads& heads, const FfdTask* next)
      : run_(run),
        task_(task),
        heads_(heads),
        tiles_per_page_(run.desc.format.page_size / kTileTokens),
        walk_(*heads[0], task, tiles_per_page_),
        next_walk_(walk_) {
    if (next == nullptr) return;
    has_next_ = true;
    next_walk_ = ChunkWalk(FfdHead(run, next->batch_idx, next->first_head), *next, tiles_per_page_);
  }

  int64_t num_chunks() const { return walk_.num_chunks(); }
  void scan_rows(int32_t first_row, const float (*thresholds)[kMaxRows], TileQueue& found);

 private:
  const uint8_t* chunk_ahead(int64_t i) const {
    if (i < walk_.num_chunks()) return walk_.chunk(i);
    return has_next_ ? next_walk_.chunk(i - walk_.num_chunks()) : nullptr;
  }

  const FfdRun& run_;
  const FfdTask& task_;
  const FfdHeads& heads_;
  int64_t tiles_per_page_;
  ChunkWalk walk_;
  ChunkWalk next_walk_;
  bool has_next_ = false;
};

// Scans with up to kMaxScanRows rows.
void SplitScan::scan_rows(int32_t first_row, const float (*thresholds)[kMaxRows],
                          TileQueue& found) {
  const KvFormat& format = run_.desc.format;
  const int32_t num_rows = std::min(kMaxScanRows, heads_[0]->num_rows() - first_row);
  const Span tiles = heads_[0]->scanned_tiles(task_.tiles);
  FoldedRows folded[2];
  uint16_t masks[kMaxTilesPerPage * kMaxScanRows];
  const auto fold = [&](int64_t i) {
    const int32_t head = walk_.head(i);
    heads_[head]->fold_page(walk_.page(i), first_row, thresholds[head], folded[i % 2]);
  };
  ChunkPrefetch ahead(format, 1 + tiles_per_page_ / kTilesPerStep);
  fold(0);
  for (int64_t i = 0; i < walk_.num_chunks(); ++i) {
    const int64_t first_tile = walk_.page(i) * tiles_per_page_;
    const Span part{std::max(tiles.begin, first_tile),
                    std::min(tiles.end, first_tile + tiles_per_page_)};
    const auto begin = static_cast<int32_t>(part.begin - first_tile);
    const auto end = static_cast<int32_t>(part.end - first_tile);
    if (i % ChunkPrefetch::kRuns == 0) {
      ahead.begin([&](int64_t run) { return chunk_ahead(i + ChunkPrefetch::kRuns + run); });
    }
    ahead.ask();
    found.ask(kFoundLinesPerStep);
    if (i + 1 < walk_.num_chunks()) fold(i + 1);  // one scan early
    const uint8_t* const chunk = walk_.chunk(i);
    for (int32_t tile = begin; tile < end; tile += kTilesPerStep) {
      ahead.ask();
      found.ask(kFoundLinesPerStep);
      run_.scan_tiles(chunk, format.num_blocks(), tile, std::min(tile + kTilesPerStep, end),
                      folded[i % 2], num_rows, masks + (tile - begin) * num_rows);
    }
    heads_[walk_.head(i)]->keep_hits(task_.split, part, first_row, num_rows, masks, found);
  }
}

}  // namespace

void scan_split(const FfdRun& run, const FfdTask& task, const FfdHeads& heads,
                const FfdTask* next) {
  SplitScan scan(run, task, heads, next);
  if (scan.num_chunks() == 0) return;
  float thresholds[FfdTask::kMaxHeads][kMaxRows];
  TileQueue found(run.args.kv);
  for (int32_t i = 0; i < task.num_heads; ++i) heads[i]->scan_thresholds(thresholds[i]);
  // Rows beyond kMaxScanRows read codes that are in L2 by then.
  for (int32_t first = 0; first < heads[0]->num_rows(); first += kMaxScanRows) {
    scan.scan_rows(first, thresholds, found);
  }
  found.finish();
}

}  // namespace longdecode::cpu
