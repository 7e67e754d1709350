// One measurement: fill the cache, run the kernel, check it, time it beside its read floor.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_MEASURE_H_
#define LONGDECODE_BENCHMARKS_HARNESS_MEASURE_H_

#include <vector>

#include "benchmarks/harness/attention_bench.h"
#include "ref/attention.h"

namespace longdecode::bench {

// What the measurements on one workload share. `dense` is filled by the first of them.
struct MeasureContext {
  const Workload& work;
  const Backend& backend;
  const DeviceInfo& device;
  const BenchOptions& options;
  Timer& timer;
  std::vector<ref::AttentionOutput> dense;
};

// `row` comes with its shape and method and leaves with the numbers.
Status measure(const DecodeDesc& desc, MeasureContext& context, BenchRow& row);

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_MEASURE_H_
