// Made-up queries, keys and values whose scores are under control, so that a benchmark can say how
// many tokens the top-delta selection should keep.
//
// Background: keys and values are N(0, 1) per channel. The queries of one kv head are orthogonal
// and scaled so that softmax_scale * |q| = 2: background scores are N(0, 2^2), in nats, independent
// between heads. Into that are planted, by moving a key along its head's query:
// - anchors: one sink token (even heads of the group) and one recent token (odd heads) have the
// score
//   kThresholdScore + delta, which makes the kernel's own pseudo-max that value, and the
//   selection's threshold kThresholdScore: 5 deviations above the background (4.7 of the 2-bit
//   scores);
// - hits: one token in a stated share of the aligned 16-token groups, for one query head of the
// group
//   each in turn, 3 to 5 nats above the threshold;
// - near tokens: a stated share of all tokens lies up to 1 nat below the threshold, where 2-bit
// scores
//   (noise about 0.75 nats) cannot tell them from kept ones. They fill groups that hold a hit,
//   evenly, and what does not fit there fills groups of its own: spread singly, 1% of the tokens
//   would keep another 4% of the groups and bury what was planted.
// Later query tokens of a head (query_len > 1) are within 0.2 |q| of each other.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_WORKLOAD_H_
#define LONGDECODE_BENCHMARKS_HARNESS_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmarks/harness/kv_sample.h"
#include "longdecode/kv_format.h"
#include "longdecode/status.h"
#include "longdecode/tensor.h"
#include "longdecode/types.h"

namespace longdecode::bench {

// kPlanted: hits spread at random, each kv head has the same share. kClustered: hits in runs of
// kClusterGroups groups, and one kv head per sequence has half of all hits (or every group).
// kDump: nothing is planted; a layer of a model, repeated (WorkloadSpec::sample).
enum class WorkloadKind : int32_t { kPlanted = 0, kClustered = 1, kDump = 2 };

inline constexpr double kScoreDeviation = 2.0;  // nats
inline constexpr double kThresholdScore = 10.0;
// Above kMaxAnchorDelta the threshold is taken to be out of use (the background passes too), and
// the anchors stay where the default delta puts them, so that they do not drown everything else.
inline constexpr double kMaxAnchorDelta = 10.0;
inline constexpr double kDefaultAnchorDelta = 5.0;
inline constexpr double kHitMin = 3.0;  // nats above the threshold
inline constexpr double kHitMax = 5.0;
inline constexpr double kNearWidth = 1.0;  // nats below the threshold
inline constexpr int64_t kClusterGroups = 32;

struct WorkloadSpec {
  WorkloadKind kind = WorkloadKind::kPlanted;
  Op op = Op::kGqa;
  DType dtype = DType::kBF16;
  int32_t batch = 1;
  int32_t query_len = 1;
  int64_t kv_len = 16384;  // of every sequence, the query tokens' own included
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t key_dim = 128;
  int32_t value_dim = 128;
  int32_t page_size = 128;  // of the cache; decides which tokens are quantised
  float softmax_scale = 0.0f;
  float delta = 5.0f;
  int32_t sink_tokens = 128;
  int32_t recent_tokens = 128;
  double kept = 0.01;            // share of selectable groups with a hit, mean over kv heads
  double near_threshold = 0.01;  // share of all tokens
  uint64_t seed = 1;
  std::shared_ptr<const KvSample> sample;  // kDump only

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
};

struct FreeDeleter {
  void operator()(void* memory) const;
};
// Host memory, 64-byte aligned.
using HostBuffer = std::unique_ptr<uint8_t, FreeDeleter>;
Result<HostBuffer> allocate_host(int64_t num_bytes);

// A token that was moved for query head `head_in_group` of its kv head.
struct PlantedToken {
  int32_t batch_idx = 0;
  int32_t kv_head_idx = 0;
  int32_t head_in_group = 0;
  int64_t token = 0;
  float score = 0.0f;
  bool is_hit = false;  // else a near token
};

struct Workload {
  WorkloadSpec spec;
  HostBuffer q_data, k_data, v_data;
  TensorView q;  // [batch, query_len, num_q_heads, key_dim], spec.dtype
  TensorView k;  // [batch, kv_len, num_kv_heads, key_dim]
  TensorView v;  // [batch, kv_len, num_kv_heads, value_dim]; MLA: no data
  std::vector<PlantedToken> planted;
};

// Aligned 16-token groups of which selection decides, [first, last): quantised, and without sink or
// recent tokens.
struct GroupRange {
  int64_t first = 0;
  int64_t last = 0;
  int64_t size() const { return last - first; }
};
GroupRange selectable_groups(const WorkloadSpec& spec);

// Bytes of q, k and v.
int64_t workload_bytes(const WorkloadSpec& spec);

// kInvalidArgument for shapes that make no sense.
Status check(const WorkloadSpec& spec);

// check() first; kOutOfMemory.
Result<Workload> make_workload(const WorkloadSpec& spec, int32_t num_threads);

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_WORKLOAD_H_
