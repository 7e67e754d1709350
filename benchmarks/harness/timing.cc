#include "benchmarks/harness/timing.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "benchmarks/harness/stream_read.h"
#ifdef LONGDECODE_HAS_CUDA
#include "benchmarks/gpu_timer/gpu_timer.h"
#include "benchmarks/harness/cuda_timer.h"
#endif

namespace longdecode::bench {
namespace {

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// Anonymous memory with every page written once: pages that were never written all share one page
// of zeros, and reading that flushes nothing.
class ReadBuffer {
 public:
  static Result<ReadBuffer> create(int64_t num_bytes, int32_t num_threads) {
    ReadBuffer buffer;
    buffer.num_bytes_ = num_bytes;
    if (num_bytes == 0) return buffer;
    void* memory = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return out_of_memory("{} bytes for the flush and the read floor: not available", num_bytes);
    }
    buffer.memory_ = static_cast<uint8_t*>(memory);
    madvise(memory, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);  // as large pools usually are
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (int64_t at = 0; at < num_bytes; at += 4096) buffer.memory_[at] = 1;
    return buffer;
  }
  ReadBuffer(ReadBuffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), num_bytes_(other.num_bytes_) {}
  ReadBuffer& operator=(ReadBuffer&&) = delete;
  ~ReadBuffer() {
    if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(num_bytes_));
  }
  const uint8_t* data() const { return memory_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  ReadBuffer() = default;
  uint8_t* memory_ = nullptr;
  int64_t num_bytes_ = 0;
};

class WallTimer : public Timer {
 public:
  WallTimer(ReadBuffer flush, ReadBuffer floor, std::string l2, int32_t num_threads)
      : flush_(std::move(flush)),
        floor_(std::move(floor)),
        l2_(std::move(l2)),
        num_threads_(num_threads) {}

  std::string timing() const override { return "wall"; }
  std::string l2() const override { return l2_; }
  double flush_us() const override { return flush_us_; }

  Result<double> sample_us(const Operation& operation) override {
    const double flush_start = now_us();
    sink_ = sink_ ^ stream_read(flush_.data(), flush_.num_bytes(), num_threads_);
    const double start = now_us();
    LD_RETURN_IF_ERROR(operation(nullptr));
    const double end = now_us();
    flush_us_ = start - flush_start;
    return end - start;
  }

  Status read_floor(int64_t num_bytes, StreamHandle) override {
    if (num_bytes > floor_.num_bytes()) {
      return invalid_argument("read floor of {} bytes; the buffer has {}", num_bytes,
                              floor_.num_bytes());
    }
    sink_ = sink_ ^ stream_read(floor_.data(), num_bytes, num_threads_);
    return {};
  }

 private:
  ReadBuffer flush_;
  ReadBuffer floor_;
  std::string l2_;
  int32_t num_threads_;
  double flush_us_ = 0.0;
  volatile uint64_t sink_ = 0;  // keeps the reads
};

Result<std::unique_ptr<Timer>> make_wall_timer(const DeviceInfo& device, int64_t flush_bytes,
                                               int64_t max_floor_bytes) {
  LD_ASSIGN_OR_RETURN(ReadBuffer flush, ReadBuffer::create(flush_bytes, device.num_threads));
  LD_ASSIGN_OR_RETURN(ReadBuffer floor, ReadBuffer::create(max_floor_bytes, device.num_threads));
  const bool whole =
      device.last_level_cache_bytes > 0 && flush_bytes >= default_flush_bytes(device);
  std::string l2 = whole ? "cold" : flush_bytes > 0 ? "cold-partial" : "warm";
  return std::unique_ptr<Timer>(
      new WallTimer(std::move(flush), std::move(floor), std::move(l2), device.num_threads));
}

}  // namespace

int64_t default_flush_bytes(const DeviceInfo& device) {
#ifdef LONGDECODE_HAS_CUDA
  if (device.type == DeviceType::kCuda) return gpu_bench::kDefaultFlushBytes;
#endif
  const int64_t cache = device.last_level_cache_bytes;
  return kFlushFactor * (cache > 0 ? cache : kAssumedCacheBytes);
}

int32_t default_reps(Timing timing) { return timing == Timing::kEvents ? 20 : 7; }

Result<std::unique_ptr<Timer>> make_timer(const DeviceInfo& device, Timing timing,
                                          int64_t flush_bytes, int64_t max_floor_bytes) {
  const bool is_cpu = device.type == DeviceType::kCpu;
  if (timing != Timing::kDefault && (timing == Timing::kWall) != is_cpu) {
    return invalid_argument("timing is {}; allowed on this device: {}",
                            static_cast<int32_t>(timing),
                            is_cpu ? "1 (wall)" : "2 (graph), 3 (events)");
  }
  if (is_cpu) return make_wall_timer(device, flush_bytes, max_floor_bytes);
#ifdef LONGDECODE_HAS_CUDA
  return make_cuda_timer(timing, flush_bytes, max_floor_bytes);
#else
  return unsupported("timing on device type {}; this build times 0 (cpu)",
                     static_cast<int32_t>(device.type));
#endif
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  if (samples.size() % 2 == 1) return samples[middle];
  return 0.5 * (samples[middle - 1] + samples[middle]);
}

}  // namespace longdecode::bench
