// The key format study: every kv head of layer samples, in parallel, and the sums of all.
#ifndef LONGDECODE_BENCHMARKS_STUDY_STUDY_H_
#define LONGDECODE_BENCHMARKS_STUDY_STUDY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/study/head_study.h"
#include "benchmarks/study/layer_sample.h"
#include "longdecode/status.h"

namespace longdecode::study {

// What one layer of one source gave, summed over its kv heads.
struct LayerResult {
  std::string source;
  int32_t layer_idx = 0;
  HeadResult sums;
};

// `progress` (may be empty) is called from one thread at a time with the kv heads that are done.
// The result does not depend on num_threads.
Result<std::vector<LayerResult>> run_study(
    const std::vector<LayerSample>& samples, uint64_t seed, int32_t num_threads,
    const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace longdecode::study

#endif  // LONGDECODE_BENCHMARKS_STUDY_STUDY_H_
