#include "benchmarks/gpu_mla/gpu_timer.h"

#include <algorithm>
#include <vector>

#include "tests/gpu/fill.h"

namespace longdecode::gpu_bench {

using gpu_test::check_cuda;

namespace {
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
}  // namespace

GpuTimer::GpuTimer() {
  check_cuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
  check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  check_cuda(cudaMemset(flush_buffer_.data(), 1, flush_buffer_.num_bytes()), "cudaMemset");
}

GpuTimer::~GpuTimer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
  cudaStreamDestroy(stream_);
}

void GpuTimer::flush() {
  check_cuda(gpu_test::read_bytes(flush_buffer_.data(), kFlushBytes, sink_.data(), stream_),
             "flush");
}

GpuTimes GpuTimer::measure(const Launch& launch, int num_reps) {
  std::vector<double> times;
  for (int i = -2; i < num_reps; ++i) {
    flush();
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    launch(stream_);
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaStreamSynchronize(stream_), "measure");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    if (i >= 0) times.push_back(ms * 1e3);
  }
  GpuTimes result;
  result.events_us = median(times);
  result.events_min_us = *std::min_element(times.begin(), times.end());
  result.graph_us = graph_of(launch) - graph_of([](cudaStream_t) {});
  return result;
}

double GpuTimer::graph_of(const Launch& launch) {
  constexpr int kCalls = 8, kReplays = 7;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < kCalls; ++i) {
    flush();
    launch(stream_);
  }
  check_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  std::vector<double> times;
  for (int i = -1; i < kReplays; ++i) {
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    check_cuda(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaStreamSynchronize(stream_), "measure");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    if (i >= 0) times.push_back(ms * 1e3 / kCalls);
  }
  check_cuda(cudaGraphExecDestroy(executable), "destroy");
  check_cuda(cudaGraphDestroy(graph), "destroy");
  return median(times);
}

}  // namespace longdecode::gpu_bench
