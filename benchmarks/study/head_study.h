// Evaluates every grid variant, page size and selection rule on one kv head of a layer sample.
#ifndef LONGDECODE_BENCHMARKS_STUDY_HEAD_STUDY_H_
#define LONGDECODE_BENCHMARKS_STUDY_HEAD_STUDY_H_

#include <array>
#include <cstdint>
#include <vector>

#include "benchmarks/study/key_grid.h"
#include "benchmarks/study/layer_sample.h"
#include "benchmarks/study/selection.h"
#include "longdecode/status.h"

namespace longdecode::study {

inline constexpr std::array<int32_t, 2> kPageSizes = {64, 128};
inline constexpr int32_t kSinkTokens = 128;
inline constexpr int32_t kRecentTokens = 128;

// Errors of the scores of scanned tokens, sums over query rows.
struct ScoreSums {
  double rows = 0.0;
  double relative = 0.0;  // rms(scan - stored score) / deviation of the stored scores
  double rms = 0.0;       // rms(scan - stored score), nats
  double bias = 0.0;      // |mean(scan - stored score)|, nats
  double stored = 0.0;    // rms(stored - true score), nats

  void add(const ScoreSums& other);
};

enum class PseudoMaxFrom { kFirstToken, kSink, kRecent };
struct PseudoMax {
  double excess = 0.0;  // largest score - pseudo-max, nats
  PseudoMaxFrom from = PseudoMaxFrom::kSink;
};

struct HeadResult {
  // [variant * page sizes + page size], selections [.][rule].
  std::vector<ScoreSums> scores;
  std::vector<std::vector<SelectionSums>> selections;
  std::vector<PseudoMax> pseudo_max;  // by (position, head of the group), page 128

  void add(const HeadResult& other);  // of any head; to an empty result, too
};

Result<HeadResult> study_head(const LayerSample& sample, int32_t kv_head, uint64_t seed);

}  // namespace longdecode::study

#endif  // LONGDECODE_BENCHMARKS_STUDY_HEAD_STUDY_H_
