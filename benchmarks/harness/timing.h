// How a time is taken: one way for our kernels, for the read floor and for anything compared with
// them. The wall clock on the CPU; graph replay or events on CUDA.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_TIMING_H_
#define LONGDECODE_BENCHMARKS_HARNESS_TIMING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "longdecode/status.h"
#include "longdecode/types.h"

namespace longdecode::bench {

// The flush reads this many times the last-level cache.
inline constexpr int64_t kFlushFactor = 8;
// Taken for the last-level cache where the system does not say how large it is.
inline constexpr int64_t kAssumedCacheBytes = int64_t{64} << 20;

// kGraph (CUDA): (a graph of 8 x [flush, call] - a graph of 8 x [flush]) / 8. kEvents (CUDA):
// events around one call after a flush. kDefault: the wall clock on the CPU, kGraph on CUDA.
enum class Timing : int32_t { kDefault = 0, kWall = 1, kGraph = 2, kEvents = 3 };

// Enqueues on the stream (nullptr on the CPU) what is to be timed.
using Operation = std::function<Status(StreamHandle)>;

class Timer {
 public:
  virtual ~Timer() = default;
  virtual std::string timing() const = 0;  // "wall", "graph" or "events"
  // What the operation finds in the caches: "cold" (flushed by 8 x the last-level cache; CUDA: by
  // 256 MB or more), "cold-partial" (by less), "warm" (not flushed).
  virtual std::string l2() const = 0;
  // Flushes the caches, then times one call, in microseconds.
  virtual Result<double> sample_us(const Operation& operation) = 0;
  // The time of the last flush, for progress reports.
  virtual double flush_us() const = 0;

  // Reads num_bytes (at most max_floor_bytes of make_timer) in order, with all threads, and keeps
  // nothing: what a kernel that must read as many bytes is measured against. An Operation once
  // num_bytes is bound.
  virtual Status read_floor(int64_t num_bytes, StreamHandle stream) = 0;
};

int64_t default_flush_bytes(const DeviceInfo& device);

// Samples of a row unless the user says otherwise: 20 by events, else 7.
int32_t default_reps(Timing timing);

// Allocates and touches the flush buffer and the floor's buffer. flush_bytes 0: no flush.
// kInvalidArgument for a timing that the device type does not have.
Result<std::unique_ptr<Timer>> make_timer(const DeviceInfo& device, Timing timing,
                                          int64_t flush_bytes, int64_t max_floor_bytes);

// Middle value, or the mean of the two middle ones. `samples` is not empty.
double median(std::vector<double> samples);

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_TIMING_H_
