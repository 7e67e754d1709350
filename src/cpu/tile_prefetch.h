// The rows of the tile that comes next, on their way into L2 while a tile is attended.
#ifndef LONGDECODE_CPU_TILE_PREFETCH_H_
#define LONGDECODE_CPU_TILE_PREFETCH_H_

#include <algorithm>
#include <cstdint>

#include "cpu/tile_attention.h"

namespace longdecode::cpu {

// Requests are spread over the work on a tile: a core keeps 16 lines in flight, so all at once they
// stop the work and then leave the memory idle (GQA group 4, 2 threads: 0.75 of the plain read when
// made during the scores, 0.86 when spread). They go round kStreams runs of tokens, of keys and of
// values: at head_dim 128 that is eight 4 KB pages, and each page gets a stream of the hardware's
// prefetcher (0.86 -> 0.93; one run of keys and then one of values: 0.73; 16 pages: 0.84). MLA has
// four runs in all; 8 and 16 were slower.
class TilePrefetch {
 public:
  static constexpr int32_t kWhole = 1024;  // units of a tile
  // How much of it is asked for while the scores of the tile before are made (half: 2 to 3% slower
  // at group 4); the rest while values are added up.
  static constexpr int32_t kWhileScoring = 384;

  // next: nullptr asks for nothing.
  TilePrefetch(const Tile* next, int64_t key_row_bytes, int64_t value_row_bytes)
      : next_(next),
        key_row_bytes_(key_row_bytes),
        value_row_bytes_(value_row_bytes),
        row_bytes_(std::max(key_row_bytes, value_row_bytes)) {
    if (next == nullptr) return;
    // Else rows lie anywhere: a turn is kTurnBytes of a row.
    has_runs_ = next->num_tokens == kTileCapacity && are_runs(next->k_rows, key_row_bytes) &&
                (next->v_rows == next->k_rows || are_runs(next->v_rows, value_row_bytes));
    num_turns_ = has_runs_ ? kRunTokens * row_bytes_ / kLineBytes
                           : (row_bytes_ + kTurnBytes - 1) / kTurnBytes * kTileCapacity;
  }

  // Asks for another `units` of the tile. Always inline, as is what it calls: g++ 12 takes a
  // function that only prefetches for one without effects and drops the call.
  __attribute__((always_inline)) void advance(int32_t units) {
    if (next_ == nullptr) return;
    due_ += units * num_turns_;
    if (has_runs_) {
      const int64_t stop = std::min(due_ / kWhole, num_turns_);
      for (; done_ < stop; ++done_) take_line_of_runs();
      return;
    }
    while (done_ * kWhole < due_ && run_token_ < kRunTokens) take_turn();
  }
  __attribute__((always_inline)) void finish() { advance(kWhole); }

 private:
  static constexpr int32_t kStreams = 4;
  static constexpr int32_t kRunTokens = kTileCapacity / kStreams;
  static constexpr int32_t kLineBytes = 64;
  static constexpr int64_t kTurnBytes = 4 * kLineBytes;

  // Rows of each run one after the other: the rule where a page holds them.
  static bool are_runs(const void* const* rows, int64_t row_bytes) {
    for (int32_t run = 0; run < kStreams; ++run) {
      const char* first = static_cast<const char*>(rows[run * kRunTokens]);
      for (int32_t i = 1; i < kRunTokens; ++i) {
        if (rows[run * kRunTokens + i] != first + i * row_bytes) return false;
      }
    }
    return true;
  }

  // The next line of every run.
  __attribute__((always_inline)) void take_line_of_runs() {
    const int64_t at = done_ * kLineBytes;
    if (at < kRunTokens * key_row_bytes_) ask_runs(next_->k_rows, at);
    if (next_->v_rows != next_->k_rows && at < kRunTokens * value_row_bytes_) {
      ask_runs(next_->v_rows, at);
    }
  }
  __attribute__((always_inline)) static void ask_runs(const void* const* rows, int64_t at) {
    for (int32_t run = 0; run < kStreams; ++run) {
      __builtin_prefetch(static_cast<const char*>(rows[run * kRunTokens]) + at, 0, 2);
    }
  }

  // kTurnBytes of a key row and of a value row of one run.
  __attribute__((always_inline)) void take_turn() {
    const int32_t token = run_ * kRunTokens + run_token_;
    if (token < next_->num_tokens) {
      const void* k_row = next_->k_rows[token];
      const void* v_row = next_->v_rows[token];
      ask(k_row, key_row_bytes_);
      if (v_row != k_row) ask(v_row, value_row_bytes_);
    }
    ++done_;
    if (++run_ < kStreams) return;
    run_ = 0;
    offset_ += kTurnBytes;
    if (offset_ < row_bytes_) return;
    offset_ = 0;
    ++run_token_;
  }
  __attribute__((always_inline)) void ask(const void* row, int64_t row_bytes) const {
    const char* bytes = static_cast<const char*>(row);
    const int64_t stop = std::min(offset_ + kTurnBytes, row_bytes);
    for (int64_t i = offset_; i < stop; i += kLineBytes) __builtin_prefetch(bytes + i, 0, 2);
  }

  const Tile* next_;
  int64_t key_row_bytes_;
  int64_t value_row_bytes_;
  int64_t row_bytes_;
  bool has_runs_ = false;
  int64_t num_turns_ = 0;
  int64_t due_ = 0;   // turns * kWhole
  int64_t done_ = 0;  // turns
  int32_t run_ = 0;
  int32_t run_token_ = 0;
  int64_t offset_ = 0;
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_TILE_PREFETCH_H_
