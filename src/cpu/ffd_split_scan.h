// The scan of a part of a split for several kv heads at a time.
#ifndef LONGDECODE_CPU_FFD_SPLIT_SCAN_H_
#define LONGDECODE_CPU_FFD_SPLIT_SCAN_H_

#include <array>
#include <cstdint>
#include <optional>

#include "cpu/ffd_head.h"

namespace longdecode::cpu {

// Neighbouring kv heads of one sequence, and tiles of a split: little enough that what the scan
// finds waits in L2 until it is attended.
struct FfdTask {
  static constexpr int32_t kMaxHeads = 8;
  static constexpr int64_t kMaxTiles = 128;  // whole words of kept tiles

  int32_t batch_idx = 0;
  int32_t first_head = 0;
  int32_t num_heads = 0;
  int32_t split = 0;
  Span tiles;
};

using FfdHeads = std::array<std::optional<FfdHead>, FfdTask::kMaxHeads>;

// Keeps the tiles with a hit. Goes page by page and through the heads of each page, which is how
// they lie in memory. next: the task that probably follows, or nullptr: the beginning of its codes
// is asked for.
void scan_split(const FfdRun& run, const FfdTask& task, const FfdHeads& heads, const FfdTask* next);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_SPLIT_SCAN_H_
