#include "runner/gpu/step_graphs.h"

#include <algorithm>

#include "base/status_macros.h"
#include "cuda/host/graph.h"
#include "cuda/host/status.h"
#include "runner/model/stopwatch.h"

namespace longdecode::runner {
namespace {

using cuda::cuda_status;

// Graphs kept at once; more kinds than a session has: batch sizes, and a step without sampling.
constexpr size_t kMaxEntries = kMaxCudaBatch + 1;

bool same_sampler(const SamplerOptions& a, const SamplerOptions& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p;
}

bool same_kind(const StepKind& a, const StepKind& b) {
  return a.batch == b.batch && a.samples == b.samples &&
         (!a.samples || same_sampler(a.sampler, b.sampler));
}

}  // namespace

StepGraphs::~StepGraphs() {
  for (const Entry& entry : entries_) cudaGraphExecDestroy(entry.graph);
}

Status StepGraphs::launch(const StepKind& kind, int64_t longest_kv_len,
                          const std::function<Status()>& enqueue) {
  const bool is_cold = warm_batches_.insert(kind.batch).second;
  if (mode_ == GraphMode::kOff || is_cold) return enqueue();
  const int64_t block = mode_ == GraphMode::kBlock ? longest_kv_len / kGraphBlockTokens : 0;
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& e) { return same_kind(e.kind, kind); });
  if (entry == entries_.end() || entry->block != block) {
    LD_ASSIGN_OR_RETURN(cudaGraphExec_t const graph, capture(enqueue));
    if (entry == entries_.end() && entries_.size() == kMaxEntries) entry = entries_.begin();
    if (entry == entries_.end()) {
      entries_.push_back({kind, block, graph});
      entry = entries_.end() - 1;
    } else {
      // Replays of the old graph that are under way end before the driver frees it.
      cudaGraphExecDestroy(entry->graph);
      *entry = {kind, block, graph};
    }
  }
  ++stats_.num_replays;
  Stopwatch watch;
  const Status status = cuda_status(cudaGraphLaunch(entry->graph, stream_), "cudaGraphLaunch");
  watch.lap(&stats_.launch_s);
  return status;
}

Result<cudaGraphExec_t> StepGraphs::capture(const std::function<Status()>& enqueue) {
  Stopwatch watch;
  LD_ASSIGN_OR_RETURN(cudaGraph_t const graph, cuda::capture_graph(stream_, enqueue));
  watch.lap(&stats_.capture_s);
  size_t num_nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &num_nodes);
  stats_.num_nodes = static_cast<int64_t>(num_nodes);
  LD_ASSIGN_OR_RETURN(cudaGraphExec_t const executable, cuda::instantiate_graph(graph));
  watch.lap(&stats_.instantiate_s);
  ++stats_.num_captures;
  return executable;
}

}  // namespace longdecode::runner
