#include "benchmarks/random_model/step_breakdown.h"

#include "base/status_macros.h"
#include "benchmarks/gpu_timer/gpu_timer.h"

namespace longdecode::gpu_bench {
namespace {

constexpr int kReplaysPerSample = 4;

}  // namespace

Result<StepBreakdown> measure_breakdown(runner::GpuDecoder* decoder, const KvCache& cache,
                                        double step_us) {
  const auto time_of = [&](unsigned parts) {
    return warm_graph_us(
        [&]() -> Status {
          LD_RETURN_IF_ERROR(decoder->enqueue_decode(cache, parts));
          if (parts != runner::kOtherParts) return Status();
          return decoder->enqueue_sample(cache.step().batch, {.temperature = 0.0f});
        },
        decoder->stream(), kReplaysPerSample);
  };
  StepBreakdown breakdown;
  LD_ASSIGN_OR_RETURN(breakdown.weights_us, time_of(runner::kWeightParts));
  LD_ASSIGN_OR_RETURN(breakdown.attention_us, time_of(runner::kAttentionParts));
  LD_ASSIGN_OR_RETURN(breakdown.other_us, time_of(runner::kOtherParts));
  breakdown.gaps_us = step_us - breakdown.weights_us - breakdown.attention_us - breakdown.other_us;
  return breakdown;
}

}  // namespace longdecode::gpu_bench
