// Decode steps as CUDA Graphs: captured when they are needed, replayed afterwards.
#ifndef LONGDECODE_RUNNER_GPU_STEP_GRAPHS_H_
#define LONGDECODE_RUNNER_GPU_STEP_GRAPHS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "longdecode/status.h"
#include "runner/model/session.h"
#include "runner/sampler/sampler.h"

namespace longdecode::runner {

// Tokens of context that one graph of GraphMode::kBlock serves.
inline constexpr int64_t kGraphBlockTokens = 256;

// What is baked into a graph. Lengths, pages and tokens are not: they are on the device.
struct StepKind {
  int32_t batch = 1;
  bool samples = false;
  SamplerOptions sampler;  // used when samples, but for its seed
};

// Not for concurrent use.
class StepGraphs {
 public:
  StepGraphs(GraphMode mode, cudaStream_t stream) : mode_(mode), stream_(stream) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Runs what `enqueue` puts on the stream. longest_kv_len is that of the batch; it decides when
  // kBlock captures anew. The first step of a batch size runs without a graph: it loads the
  // kernels.
  Status launch(const StepKind& kind, int64_t longest_kv_len,
                const std::function<Status()>& enqueue);

  const GraphStats& stats() const { return stats_; }

 private:
  struct Entry {
    StepKind kind;
    int64_t block = 0;
    cudaGraphExec_t graph = nullptr;
  };
  Result<cudaGraphExec_t> capture(const std::function<Status()>& enqueue);

  GraphMode mode_;
  cudaStream_t stream_;
  std::set<int32_t> warm_batches_;
  std::vector<Entry> entries_;
  GraphStats stats_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_STEP_GRAPHS_H_
