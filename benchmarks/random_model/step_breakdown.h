// What a decode step's kinds of work take when each is replayed alone.
#ifndef LONGDECODE_BENCHMARKS_RANDOM_MODEL_STEP_BREAKDOWN_H_
#define LONGDECODE_BENCHMARKS_RANDOM_MODEL_STEP_BREAKDOWN_H_

#include "benchmarks/random_model/random_model_bench.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "runner/gpu/gpu_decoder.h"

namespace longdecode::gpu_bench {

// Of the cache's reserved step, one token a sequence, whose lengths the decoder has. step_us is the
// whole step's time. The step's tokens are written, over and over; it is not committed.
Result<StepBreakdown> measure_breakdown(runner::GpuDecoder* decoder, const KvCache& cache,
                                        double step_us);

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_RANDOM_MODEL_STEP_BREAKDOWN_H_
