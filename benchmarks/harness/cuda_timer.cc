#include "benchmarks/harness/cuda_timer.h"

#include <utility>

#include "base/status_macros.h"
#include "benchmarks/gpu_timer/gpu_timer.h"

namespace longdecode::bench {
namespace {

class CudaTimer : public Timer {
 public:
  CudaTimer(std::unique_ptr<gpu_bench::GpuTimer> timer, bool uses_events, std::string l2)
      : timer_(std::move(timer)), uses_events_(uses_events), l2_(std::move(l2)) {}

  std::string timing() const override { return uses_events_ ? "events" : "graph"; }
  std::string l2() const override { return l2_; }
  double flush_us() const override { return timer_->flush_us(); }

  Result<double> sample_us(const Operation& operation) override {
    return uses_events_ ? timer_->sample_events_us(operation) : timer_->sample_graph_us(operation);
  }

  Status read_floor(int64_t num_bytes, StreamHandle stream) override {
    return timer_->read(num_bytes, static_cast<cudaStream_t>(stream));
  }

 private:
  std::unique_ptr<gpu_bench::GpuTimer> timer_;
  bool uses_events_;
  std::string l2_;
};

}  // namespace

Result<std::unique_ptr<Timer>> make_cuda_timer(Timing timing, int64_t flush_bytes,
                                               int64_t max_floor_bytes) {
  LD_ASSIGN_OR_RETURN(std::unique_ptr<gpu_bench::GpuTimer> timer,
                      gpu_bench::GpuTimer::create(flush_bytes, max_floor_bytes));
  std::string l2 = flush_bytes >= gpu_bench::kColdFlushBytes ? "cold"
                   : flush_bytes > 0                         ? "cold-partial"
                                                             : "warm";
  return std::unique_ptr<Timer>(
      new CudaTimer(std::move(timer), timing == Timing::kEvents, std::move(l2)));
}

}  // namespace longdecode::bench
