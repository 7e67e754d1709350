#include "benchmarks/random_model/step_breakdown.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/status_macros.h"
#include "cuda/host/status.h"

namespace longdecode::gpu_bench {
namespace {

using cuda::cuda_status;

constexpr int kSamples = 7;
constexpr int kReplaysPerSample = 4;

struct Events {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  ~Events() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
};

Result<double> replay_us(cudaGraphExec_t graph, cudaStream_t stream) {
  Events events;
  LD_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&events.begin), "cudaEventCreate"));
  LD_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&events.end), "cudaEventCreate"));
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    cudaEventRecord(events.begin, stream);
    for (int r = 0; r < kReplaysPerSample; ++r) {
      LD_RETURN_IF_ERROR(cuda_status(cudaGraphLaunch(graph, stream), "cudaGraphLaunch"));
    }
    cudaEventRecord(events.end, stream);
    LD_RETURN_IF_ERROR(cuda_status(cudaEventSynchronize(events.end), "a part of a step"));
    float ms = 0.0f;
    cudaEventElapsedTime(&ms, events.begin, events.end);
    samples.push_back(1e3 * static_cast<double>(ms) / kReplaysPerSample);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

Result<double> time_graph(const std::function<Status()>& enqueue, cudaStream_t stream) {
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                 "cudaStreamBeginCapture"));
  const Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  LD_RETURN_IF_ERROR(enqueued);
  LD_RETURN_IF_ERROR(cuda_status(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  LD_RETURN_IF_ERROR(cuda_status(instantiated, "cudaGraphInstantiate"));
  Result<double> time_us = replay_us(executable, stream);
  cudaGraphExecDestroy(executable);
  return time_us;
}

}  // namespace

Result<StepBreakdown> measure_breakdown(runner::GpuDecoder* decoder, const KvCache& cache,
                                        double step_us) {
  const auto time_of = [&](unsigned parts) {
    return time_graph(
        [&]() -> Status {
          LD_RETURN_IF_ERROR(decoder->enqueue_decode(cache, parts));
          if (parts != runner::kOtherParts) return Status();
          return decoder->enqueue_sample(cache.step().batch, {.temperature = 0.0f});
        },
        decoder->stream());
  };
  StepBreakdown breakdown;
  LD_ASSIGN_OR_RETURN(breakdown.weights_us, time_of(runner::kWeightParts));
  LD_ASSIGN_OR_RETURN(breakdown.attention_us, time_of(runner::kAttentionParts));
  LD_ASSIGN_OR_RETURN(breakdown.other_us, time_of(runner::kOtherParts));
  breakdown.gaps_us = step_us - breakdown.weights_us - breakdown.attention_us - breakdown.other_us;
  return breakdown;
}

}  // namespace longdecode::gpu_bench
