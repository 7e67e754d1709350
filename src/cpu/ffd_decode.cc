#include "cpu/ffd_decode.h"

#include <algorithm>
#include <atomic>

#include "base/integer_math.h"
#include "cpu/ffd_head.h"
#include "cpu/ffd_layout.h"
#include "cpu/ffd_scan.h"
#include "cpu/ffd_split_scan.h"

namespace longdecode::cpu {
namespace {

// Enough to keep threads evenly busy; more heads in a task make longer runs of memory.
constexpr int64_t kTasksPerThread = 4;

class FfdDecode final : public DecodeKernel {
 public:
  FfdDecode(const DecodeDesc& desc, const DeviceInfo& device)
      : desc_(desc),
        layout_(desc),
        scan_tiles_(select_scan_kernel(device).scan_tiles),
        use_plane_scores_(PlaneScores::serves(desc, device)),
        num_threads_(device.num_threads) {}

  int64_t workspace_bytes() const override { return layout_.workspace_bytes(); }

  // Every run writes what it reads: nothing to prepare.
  Status init(void* /*workspace*/, StreamHandle /*stream*/) override { return {}; }

  Status run(const DecodeArgs& args, void* workspace, StreamHandle /*stream*/) override {
    FfdLayout layout = layout_;
    layout.bind(workspace);
    const FfdRun run{desc_, args, layout, scan_tiles_, use_plane_scores_};
    const int32_t num_kv_heads = desc_.format.num_kv_heads;
    const int64_t num_heads = int64_t{args.batch.batch} * num_kv_heads;
    const auto head = [&](int64_t head_idx) {
      return FfdHead(run, static_cast<int32_t>(head_idx / num_kv_heads),
                     static_cast<int32_t>(head_idx % num_kv_heads));
    };
    Tasks tasks(args, layout, num_kv_heads, num_threads_);
    const int64_t num_parts = num_heads * tasks.splits;
    // Each loop ends with a barrier; the next one reads what it wrote.
#pragma omp parallel num_threads(num_threads_)
    {
      // The first two give a thread the same heads: it finds in its caches what it has asked for.
#pragma omp for schedule(static)
      for (int64_t i = 0; i < num_heads; ++i) head(i).begin();
#pragma omp for schedule(static)
      for (int64_t i = 0; i < num_parts; ++i) {
        const FfdHead part_head = head(i / tasks.splits);
        const auto split = static_cast<int32_t>(i % tasks.splits);
        if (split < part_head.num_splits()) part_head.attend_always(split);
      }
      for (int64_t i = tasks.next++; i < tasks.count; i = tasks.next++) {
        const int64_t following = tasks.next.load(std::memory_order_relaxed);
        const FfdTask next = tasks.task(following);
        attend_candidates(run, tasks.task(i), following < tasks.count ? &next : nullptr);
      }
#pragma omp barrier
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < num_heads; ++i) head(i).finish();
    }
    return {};
  }

 private:
  // Threads take them in order: split by split of the same heads.
  struct Tasks {
    Tasks(const DecodeArgs& args, const FfdLayout& layout, int32_t num_kv_heads,
          int32_t num_threads)
        : kv_heads(num_kv_heads) {
      const int64_t longest =
          *std::max_element(args.batch.kv_lens, args.batch.kv_lens + args.batch.batch);
      tiles_per_split = layout.tokens_per_split() / kTileTokens;
      splits = std::max<int64_t>(1, ceil_div(longest, layout.tokens_per_split()));
      const int64_t parts = int64_t{args.batch.batch} * num_kv_heads * splits;
      heads_per_task = std::clamp<int64_t>(parts / (kTasksPerThread * num_threads), 1,
                                           std::min(num_kv_heads, FfdTask::kMaxHeads));
      groups = ceil_div(num_kv_heads, heads_per_task);
      count = args.batch.batch * groups * splits;
    }
    FfdTask task(int64_t i) const {
      FfdTask task;
      task.split = static_cast<int32_t>(i % splits);
      task.batch_idx = static_cast<int32_t>(i / splits / groups);
      task.first_head = static_cast<int32_t>(i / splits % groups * heads_per_task);
      task.num_heads =
          static_cast<int32_t>(std::min<int64_t>(heads_per_task, kv_heads - task.first_head));
      task.tiles.begin = task.split * tiles_per_split;
      task.tiles.end = task.tiles.begin + FfdTask::kMaxTiles;
      return task;
    }

    int32_t kv_heads = 1;
    int64_t splits = 1;  // of the longest sequence
    int64_t tiles_per_split = 0;
    int64_t heads_per_task = 1;
    int64_t groups = 1;
    int64_t count = 0;
    std::atomic<int64_t> next = 0;
  };

  // task, next: the first parts of their splits.
  static void attend_candidates(const FfdRun& run, FfdTask task, const FfdTask* next) {
    FfdHeads heads;
    for (int32_t i = 0; i < task.num_heads; ++i) {
      heads[i].emplace(run, task.batch_idx, task.first_head + i);
    }
    if (task.split >= heads[0]->num_splits()) return;
    for (int32_t i = 0; i < task.num_heads; ++i) heads[i]->begin_candidates(task.split);
    const int64_t end = heads[0]->split_tiles(task.split).end;
    while (task.tiles.begin < end) {
      FfdTask following = task;
      following.tiles = {task.tiles.end, task.tiles.end + FfdTask::kMaxTiles};
      task.tiles.end = std::min(task.tiles.end, end);
      scan_split(run, task, heads, following.tiles.begin < end ? &following : next);
      for (int32_t i = 0; i < task.num_heads; ++i) {
        heads[i]->attend_kept(task.split, task.tiles);
      }
      task.tiles = following.tiles;
    }
    for (int32_t i = 0; i < task.num_heads; ++i) heads[i]->count(task.split);
  }

  const DecodeDesc desc_;
  const FfdLayout layout_;
  const ScanTiles scan_tiles_;
  const bool use_plane_scores_;
  const int32_t num_threads_;
};

}  // namespace

std::unique_ptr<DecodeKernel> make_ffd_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  return std::make_unique<FfdDecode>(desc, device);
}

int64_t ffd_tokens_per_split(const DecodeDesc& desc) { return FfdLayout(desc).tokens_per_split(); }

const char* ffd_isa(const DeviceInfo& device) { return select_scan_kernel(device).isa; }

}  // namespace longdecode::cpu
