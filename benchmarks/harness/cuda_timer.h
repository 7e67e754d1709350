// The Timer of a CUDA device.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_CUDA_TIMER_H_
#define LONGDECODE_BENCHMARKS_HARNESS_CUDA_TIMER_H_

#include <cstdint>
#include <memory>

#include "benchmarks/harness/timing.h"

namespace longdecode::bench {

// kEvents, else graphs.
Result<std::unique_ptr<Timer>> make_cuda_timer(Timing timing, int64_t flush_bytes,
                                               int64_t max_floor_bytes);

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_CUDA_TIMER_H_
