#include "benchmarks/gpu_timer/gpu_timer.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/status_macros.h"
#include "benchmarks/gpu_timer/stream_read.h"
#include "cuda/host/graph.h"
#include "cuda/host/status.h"

namespace longdecode::gpu_bench {

using cuda::cuda_status;

namespace {

constexpr int kGraphCalls = 8;
constexpr int kGraphSamples = 7;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Result<std::unique_ptr<GpuTimer>> GpuTimer::create(int64_t flush_bytes, int64_t max_read_bytes) {
  std::unique_ptr<GpuTimer> timer(new GpuTimer);
  timer->flush_bytes_ = flush_bytes;
  timer->max_read_bytes_ = max_read_bytes;
  const auto allocate = [](void** memory, int64_t num_bytes) -> Status {
    const int64_t size = std::max<int64_t>(num_bytes, 16);
    LD_RETURN_IF_ERROR(cuda_status(cudaMalloc(memory, size), "cudaMalloc of the timer"));
    return cuda_status(cudaMemset(*memory, 1, size), "cudaMemset of the timer");
  };
  LD_RETURN_IF_ERROR(allocate(&timer->flush_buffer_, flush_bytes));
  LD_RETURN_IF_ERROR(allocate(&timer->read_buffer_, max_read_bytes));
  LD_RETURN_IF_ERROR(allocate(&timer->sink_, 16));
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamCreate(&timer->stream_), "cudaStreamCreate"));
  LD_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&timer->begin_), "cudaEventCreate"));
  LD_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&timer->end_), "cudaEventCreate"));
  return timer;
}

GpuTimer::~GpuTimer() {
  if (flush_graph_ != nullptr) cudaGraphExecDestroy(flush_graph_);
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  cudaFree(flush_buffer_);
  cudaFree(read_buffer_);
  cudaFree(sink_);
}

Status GpuTimer::flush() {
  if (flush_bytes_ == 0) return {};
  return cuda_status(fill_l2(flush_buffer_, flush_bytes_, sink_, stream_), "flush of the L2");
}

Status GpuTimer::read(int64_t num_bytes, cudaStream_t stream) {
  if (num_bytes > max_read_bytes_) {
    return invalid_argument("read floor of {} bytes; the buffer has {}", num_bytes,
                            max_read_bytes_);
  }
  return cuda_status(stream_read(read_buffer_, num_bytes, sink_, stream), "streaming read");
}

Result<double> GpuTimer::sample_events_us(const Launch& launch) {
  LD_RETURN_IF_ERROR(flush());
  LD_RETURN_IF_ERROR(cuda_status(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
  LD_RETURN_IF_ERROR(launch(stream_));
  LD_RETURN_IF_ERROR(cuda_status(cudaEventRecord(end_, stream_), "cudaEventRecord"));
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream_), "timed call"));
  float ms = 0;
  LD_RETURN_IF_ERROR(cuda_status(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
  return ms * 1e3;
}

Result<cudaGraphExec_t> GpuTimer::capture(const Launch& launch) {
  LD_ASSIGN_OR_RETURN(cudaGraph_t const graph, cuda::capture_graph(stream_, [&] {
                        Status status;
                        for (int i = 0; i < kGraphCalls && status.ok(); ++i) {
                          status = flush();
                          if (status.ok()) status = launch(stream_);
                        }
                        return status;
                      }));
  return cuda::instantiate_graph(graph);
}

Result<double> GpuTimer::replay_us(cudaGraphExec_t graph) {
  LD_RETURN_IF_ERROR(cuda_status(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
  LD_RETURN_IF_ERROR(cuda_status(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch"));
  LD_RETURN_IF_ERROR(cuda_status(cudaEventRecord(end_, stream_), "cudaEventRecord"));
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream_), "replay"));
  float ms = 0;
  LD_RETURN_IF_ERROR(cuda_status(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
  return ms * 1e3 / kGraphCalls;
}

Result<double> GpuTimer::sample_graph_us(const Launch& launch) {
  if (flush_graph_ == nullptr) {
    LD_ASSIGN_OR_RETURN(flush_graph_, capture([](cudaStream_t) { return Status(); }));
  }
  LD_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, capture(launch));
  Result<double> with = replay_us(graph);  // uploads the graph
  if (with.ok()) with = replay_us(graph);
  cudaGraphExecDestroy(graph);
  LD_RETURN_IF_ERROR(with.status());
  LD_ASSIGN_OR_RETURN(flush_us_, replay_us(flush_graph_));
  return *with - flush_us_;
}

Result<GpuTimes> GpuTimer::measure(const Launch& launch, int num_reps) {
  std::vector<double> events, graphs;
  for (int i = -2; i < num_reps; ++i) {
    LD_ASSIGN_OR_RETURN(const double us, sample_events_us(launch));
    if (i >= 0) events.push_back(us);
  }
  for (int i = 0; i < kGraphSamples; ++i) {
    LD_ASSIGN_OR_RETURN(const double us, sample_graph_us(launch));
    graphs.push_back(us);
  }
  return GpuTimes{median(events), *std::min_element(events.begin(), events.end()), median(graphs)};
}

Result<double> warm_graph_us(const std::function<Status()>& enqueue, cudaStream_t stream,
                             int num_replays) {
  struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    ~Events() {
      if (begin != nullptr) cudaEventDestroy(begin);
      if (end != nullptr) cudaEventDestroy(end);
    }
  } events;
  LD_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&events.begin), "cudaEventCreate"));
  LD_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&events.end), "cudaEventCreate"));
  LD_ASSIGN_OR_RETURN(cudaGraph_t const captured, cuda::capture_graph(stream, enqueue));
  LD_ASSIGN_OR_RETURN(cudaGraphExec_t const graph, cuda::instantiate_graph(captured));
  const std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, decltype(&cudaGraphExecDestroy)>
      owner(graph, &cudaGraphExecDestroy);
  std::vector<double> samples;
  for (int i = 0; i < kGraphSamples; ++i) {
    LD_RETURN_IF_ERROR(cuda_status(cudaEventRecord(events.begin, stream), "cudaEventRecord"));
    for (int k = 0; k < num_replays; ++k) {
      LD_RETURN_IF_ERROR(cuda_status(cudaGraphLaunch(graph, stream), "cudaGraphLaunch"));
    }
    LD_RETURN_IF_ERROR(cuda_status(cudaEventRecord(events.end, stream), "cudaEventRecord"));
    LD_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "replay"));
    float ms = 0;
    LD_RETURN_IF_ERROR(
        cuda_status(cudaEventElapsedTime(&ms, events.begin, events.end), "cudaEventElapsedTime"));
    samples.push_back(ms * 1e3 / num_replays);
  }
  return median(samples);
}

}  // namespace longdecode::gpu_bench
