// Timing on the GPU, one helper for kernels, for the read floor and for every benchmark: cold,
// clean L2.
#ifndef LONGDECODE_BENCHMARKS_GPU_TIMER_GPU_TIMER_H_
#define LONGDECODE_BENCHMARKS_GPU_TIMER_GPU_TIMER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "longdecode/status.h"

namespace longdecode::gpu_bench {

// Enqueues the operation on a stream that may be capturing.
using Launch = std::function<Status(cudaStream_t)>;

// A flush smaller than this leaves part of the L2 warm.
inline constexpr int64_t kColdFlushBytes = int64_t{256} << 20;
inline constexpr int64_t kDefaultFlushBytes = int64_t{384} << 20;

struct GpuTimes {
  double events_us = 0;  // median of num_reps samples
  double events_min_us = 0;
  double graph_us = 0;  // median of 7 samples
};

class GpuTimer {
 public:
  // On the current device. read() reads at most max_read_bytes.
  static Result<std::unique_ptr<GpuTimer>> create(int64_t flush_bytes = kDefaultFlushBytes,
                                                  int64_t max_read_bytes = 0);
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  // Events around one call after a flush.
  Result<double> sample_events_us(const Launch& launch);
  // (a graph of 8 x [flush, call] - a graph of 8 x [flush]) / 8.
  Result<double> sample_graph_us(const Launch& launch);
  Result<GpuTimes> measure(const Launch& launch, int num_reps = 20);

  // A plain streaming read of num_bytes (a multiple of 16 is read): the floor of a kernel that has
  // to read as much.
  Status read(int64_t num_bytes, cudaStream_t stream);

  double flush_us() const { return flush_us_; }  // of the last graph sample, else 0
  cudaStream_t stream() const { return stream_; }

 private:
  GpuTimer() = default;
  Status flush();  // read-only: leaves no dirty lines
  Result<cudaGraphExec_t> capture(const Launch& launch);
  Result<double> replay_us(cudaGraphExec_t graph);

  int64_t flush_bytes_ = 0, max_read_bytes_ = 0;
  void* flush_buffer_ = nullptr;
  void* read_buffer_ = nullptr;
  void* sink_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  cudaGraphExec_t flush_graph_ = nullptr;  // 8 x [flush], captured by the first graph sample
  double flush_us_ = 0;
};

// A graph of what `enqueue` puts on the stream, replayed num_replays times in a row without a
// flush: microseconds of one replay, median of 7 samples.
Result<double> warm_graph_us(const std::function<Status()>& enqueue, cudaStream_t stream,
                             int num_replays);

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_GPU_TIMER_GPU_TIMER_H_
