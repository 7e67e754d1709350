// Timing on the GPU, one helper for kernels and for the read floor: cold, clean L2.
#ifndef LONGDECODE_BENCHMARKS_GPU_MLA_GPU_TIMER_H_
#define LONGDECODE_BENCHMARKS_GPU_MLA_GPU_TIMER_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "tests/gpu/mla_workload.h"

namespace longdecode::gpu_bench {

using Launch = std::function<void(cudaStream_t)>;

struct GpuTimes {
  double events_us = 0;  // median of events around one call, each after a flush
  double events_min_us = 0;
  double graph_us = 0;  // (graph of 8 x [flush, call] - graph of 8 x [flush]) / 8
};

class GpuTimer {
 public:
  GpuTimer();
  ~GpuTimer();
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  GpuTimes measure(const Launch& launch, int num_reps = 20);
  cudaStream_t stream() const { return stream_; }

 private:
  static constexpr int64_t kFlushBytes = int64_t{384} << 20;
  void flush();  // read-only: leaves no dirty lines
  double graph_of(const Launch& launch);

  gpu_test::DeviceBuffer flush_buffer_{kFlushBytes};
  gpu_test::DeviceBuffer sink_{16};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_GPU_MLA_GPU_TIMER_H_
