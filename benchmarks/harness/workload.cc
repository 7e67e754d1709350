#include "benchmarks/harness/workload.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/float_convert.h"
#include "base/status_macros.h"
#include "benchmarks/harness/noise.h"

namespace longdecode::bench {
namespace {

enum Stream : uint64_t { kQueryStream = 1, kKeyStream, kValueStream, kPlantStream };

// What later query tokens of a head differ by, as a share of |q|.
constexpr double kQueryJitter = 0.2;

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

void add_scaled(double factor, std::span<const float> from, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += static_cast<float>(factor * double{from[i]});
}

void scale_to_norm(double norm, std::span<float> row) {
  const double factor = norm / std::sqrt(dot(row, row));
  for (float& value : row) value = static_cast<float>(value * factor);
}

// The rows of q for the last query token of a group: orthogonal, softmax_scale * |q| = 2.
void make_group_queries(const WorkloadSpec& spec, int32_t batch_idx, int32_t kv_head_idx,
                        std::vector<std::vector<float>>& queries) {
  const int32_t group = spec.group_size();
  const double norm = kScoreDeviation / double{spec.softmax_scale};
  queries.assign(static_cast<size_t>(group), std::vector<float>(size_t(spec.key_dim)));
  for (int32_t i = 0; i < group; ++i) {
    std::span<float> row = queries[size_t(i)];
    const int64_t head = int64_t{batch_idx} * spec.num_q_heads + kv_head_idx * group + i;
    fill_normal(spec.seed, kQueryStream, uint64_t(head) * kMaxQueryLen, row);
    for (int32_t pass = 0; pass < 2; ++pass) {  // Gram-Schmidt; the second pass cleans up rounding
      for (int32_t other = 0; other < i; ++other) {
        const std::span<const float> fixed = queries[size_t(other)];
        add_scaled(-dot(row, fixed) / dot(fixed, fixed), fixed, row);
      }
    }
    scale_to_norm(norm, row);
  }
}

int64_t q_row(const WorkloadSpec& spec, int64_t batch_idx, int64_t query_idx, int64_t head) {
  return (batch_idx * spec.query_len + query_idx) * spec.num_q_heads + head;
}

void fill_queries(Workload& work) {
  const WorkloadSpec& spec = work.spec;
  const int32_t group = spec.group_size();
  std::vector<std::vector<float>> queries;
  std::vector<float> jitter(size_t(spec.key_dim));
  for (int32_t b = 0; b < spec.batch; ++b) {
    for (int32_t head = 0; head < spec.num_q_heads; ++head) {
      if (head % group == 0) make_group_queries(spec, b, head / group, queries);
      const std::span<const float> base = queries[size_t(head % group)];
      for (int32_t t = 0; t < spec.query_len; ++t) {
        std::vector<float> row(base.begin(), base.end());
        if (t != spec.query_len - 1) {
          const int64_t stream_row = (int64_t{b} * spec.num_q_heads + head) * kMaxQueryLen + 1 + t;
          fill_normal(spec.seed, kQueryStream, uint64_t(stream_row), jitter);
          const double norm = std::sqrt(dot(base, base));
          scale_to_norm(kQueryJitter * norm, jitter);
          add_scaled(1.0, jitter, row);
          scale_to_norm(norm, row);
        }
        const int64_t at = q_row(spec, b, t, head) * spec.key_dim;
        for (int32_t c = 0; c < spec.key_dim; ++c) {
          store_element(work.q.data, spec.dtype, at + c, row[size_t(c)]);
        }
      }
    }
  }
}

int64_t kv_row(const WorkloadSpec& spec, int64_t batch_idx, int64_t token, int64_t kv_head_idx) {
  return (batch_idx * spec.kv_len + token) * spec.num_kv_heads + kv_head_idx;
}

void fill_background(const WorkloadSpec& spec, Stream stream, const TensorView& to,
                     int32_t num_threads) {
  if (to.data == nullptr) return;
  const int64_t rows = to.shape[0] * to.shape[1] * to.shape[2];
  const int64_t dim = to.shape[3];
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<float> values(static_cast<size_t>(dim));
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      fill_normal(spec.seed, stream, static_cast<uint64_t>(row), values);
      for (int64_t c = 0; c < dim; ++c) {
        store_element(to.data, spec.dtype, row * dim + c, values[static_cast<size_t>(c)]);
      }
    }
  }
}

// Moves the key of a token along the (stored) queries of some heads of its group, so that each of
// these heads scores it `score` and the others stay as they were.
void plant(Workload& work, int32_t batch_idx, int32_t kv_head_idx, int64_t token,
           std::span<const int32_t> heads, double score) {
  const WorkloadSpec& spec = work.spec;
  const int64_t at = kv_row(spec, batch_idx, token, kv_head_idx) * spec.key_dim;
  std::vector<float> key(size_t(spec.key_dim)), query(size_t(spec.key_dim));
  for (int32_t c = 0; c < spec.key_dim; ++c) {
    key[size_t(c)] = load_element(work.k.data, spec.dtype, at + c);
  }
  for (const int32_t i : heads) {
    const int64_t q_at = spec.key_dim * q_row(spec, batch_idx, spec.query_len - 1,
                                              kv_head_idx * spec.group_size() + i);
    for (int32_t c = 0; c < spec.key_dim; ++c) {
      query[size_t(c)] = load_element(work.q.data, spec.dtype, q_at + c);
    }
    const double scale = double{spec.softmax_scale};
    add_scaled((score - scale * dot(query, key)) / (scale * dot(query, query)), query, key);
  }
  for (int32_t c = 0; c < spec.key_dim; ++c) {
    store_element(work.k.data, spec.dtype, at + c, key[size_t(c)]);
  }
}

// Even heads of the group get their pseudo-max from sink token 0, odd heads from the oldest token
// of the step, which every query token sees; all from the one that exists.
void plant_anchors(Workload& work, int32_t batch_idx, int32_t kv_head_idx) {
  const WorkloadSpec& spec = work.spec;
  const double delta = double{spec.delta};
  const double score = kThresholdScore + (delta <= kMaxAnchorDelta ? delta : kDefaultAnchorDelta);
  const int64_t recent = spec.kv_len - spec.query_len;
  const bool has_sink = spec.sink_tokens > 0 && recent > 0;
  std::vector<int32_t> sink_heads, recent_heads;
  for (int32_t i = 0; i < spec.group_size(); ++i) {
    (has_sink && i % 2 == 0 ? sink_heads : recent_heads).push_back(i);
  }
  plant(work, batch_idx, kv_head_idx, 0, sink_heads, score);
  plant(work, batch_idx, kv_head_idx, recent, recent_heads, score);
}

// Hits for each kv head of a sequence; their sum is the stated share of all groups.
std::vector<int64_t> hits_per_head(const WorkloadSpec& spec, int32_t batch_idx, int64_t groups) {
  const int64_t heads = spec.num_kv_heads;
  int64_t left = std::llround(spec.kept * static_cast<double>(groups * heads));
  std::vector<int64_t> hits(static_cast<size_t>(heads), 0);
  int64_t heads_left = heads;
  const int64_t dense_head = batch_idx % heads;
  if (spec.kind == WorkloadKind::kClustered) {
    const int64_t in_dense_head = heads == 1 ? left : std::min(groups, (left + 1) / 2);
    // Near kept = 1 the other heads cannot take the other half.
    hits[size_t(dense_head)] = std::max(in_dense_head, left - groups * (heads - 1));
    left -= hits[size_t(dense_head)];
    --heads_left;
  }
  for (int64_t head = 0; head < heads; ++head) {
    if (spec.kind == WorkloadKind::kClustered && head == dense_head) continue;
    hits[size_t(head)] = left / heads_left;
    left -= hits[size_t(head)];
    --heads_left;
  }
  return hits;
}

// All selectable groups in random order, in runs of `run` neighbours.
std::vector<int64_t> shuffled_groups(GroupRange range, int64_t run, Random& random) {
  std::vector<int64_t> starts;
  for (int64_t start = range.first; start < range.last; start += run) starts.push_back(start);
  for (size_t i = starts.size(); i > 1; --i) {
    std::swap(starts[i - 1], starts[size_t(random.below(static_cast<int64_t>(i)))]);
  }
  std::vector<int64_t> groups;
  for (const int64_t start : starts) {
    for (int64_t i = start; i < std::min(start + run, range.last); ++i) groups.push_back(i);
  }
  return groups;
}

void plant_head(Workload& work, int32_t batch_idx, int32_t kv_head_idx, int64_t num_hits) {
  const WorkloadSpec& spec = work.spec;
  Random random(spec.seed,
                kPlantStream + 16 * static_cast<uint64_t>(int64_t{batch_idx} * spec.num_kv_heads +
                                                          kv_head_idx));
  const int64_t run = spec.kind == WorkloadKind::kClustered ? kClusterGroups : 1;
  const std::vector<int64_t> groups = shuffled_groups(selectable_groups(spec), run, random);
  int32_t next_head = 0;
  const auto add = [&](int64_t token, double score, bool is_hit) {
    const int32_t head = next_head++ % spec.group_size();
    plant(work, batch_idx, kv_head_idx, token, std::span(&head, 1), score);
    work.planted.push_back(
        {batch_idx, kv_head_idx, head, token, static_cast<float>(score), is_hit});
  };
  std::vector<int64_t> hit_tokens;
  for (int64_t i = 0; i < num_hits; ++i) {
    hit_tokens.push_back(groups[size_t(i)] * kTileTokens + random.below(kTileTokens));
    add(hit_tokens.back(), kThresholdScore + kHitMin + (kHitMax - kHitMin) * random.uniform(),
        true);
  }
  const auto near_score = [&] { return kThresholdScore - kNearWidth * random.uniform(); };
  int64_t left = std::llround(spec.near_threshold * static_cast<double>(spec.kv_len));
  for (int64_t round = 1; round < kTileTokens; ++round) {
    for (size_t i = 0; i < hit_tokens.size() && left > 0; ++i, --left) {
      const int64_t base = hit_tokens[i] / kTileTokens * kTileTokens;
      add(base + (hit_tokens[i] + round) % kTileTokens, near_score(), false);
    }
  }
  for (size_t i = size_t(num_hits); i < groups.size() && left > 0; ++i) {
    for (int64_t t = 0; t < kTileTokens && left > 0; ++t, --left) {
      add(groups[i] * kTileTokens + t, near_score(), false);
    }
  }
}

Status allocate(Workload& work) {
  const WorkloadSpec& spec = work.spec;
  const int64_t element = dtype_bytes(spec.dtype);
  const auto make = [&](HostBuffer& data, TensorView& view, int64_t len, int64_t heads,
                        int64_t dim) -> Status {
    LD_ASSIGN_OR_RETURN(data, allocate_host(spec.batch * len * heads * dim * element));
    view = TensorView::contiguous(data.get(), spec.dtype, {spec.batch, len, heads, dim});
    return {};
  };
  LD_RETURN_IF_ERROR(make(work.q_data, work.q, spec.query_len, spec.num_q_heads, spec.key_dim));
  LD_RETURN_IF_ERROR(make(work.k_data, work.k, spec.kv_len, spec.num_kv_heads, spec.key_dim));
  if (spec.op == Op::kMla) return {};
  return make(work.v_data, work.v, spec.kv_len, spec.num_kv_heads, spec.value_dim);
}

}  // namespace

void FreeDeleter::operator()(void* memory) const { std::free(memory); }

Result<HostBuffer> allocate_host(int64_t num_bytes) {
  const size_t rounded = (static_cast<size_t>(num_bytes) + 63) / 64 * 64;
  HostBuffer buffer(static_cast<uint8_t*>(std::aligned_alloc(64, std::max<size_t>(rounded, 64))));
  if (buffer == nullptr) return out_of_memory("{} bytes of host memory: not available", num_bytes);
  return buffer;
}

Status check(const WorkloadSpec& spec) {
  if (spec.batch < 1) return invalid_argument("batch is {}; allowed: 1 and more", spec.batch);
  if (spec.query_len < 1 || spec.query_len > kMaxQueryLen) {
    return invalid_argument("query_len is {}; allowed: 1 to {}", spec.query_len, kMaxQueryLen);
  }
  if (spec.kv_len < spec.query_len || spec.kv_len > INT32_MAX) {
    return invalid_argument("kv_len is {}; allowed: query_len ({}) to {}", spec.kv_len,
                            spec.query_len, INT32_MAX);
  }
  if (spec.num_kv_heads < 1) {
    return invalid_argument("num_kv_heads is {}; allowed: 1 and more", spec.num_kv_heads);
  }
  if (spec.num_q_heads < 1 || spec.num_q_heads % spec.num_kv_heads != 0) {
    return invalid_argument("num_q_heads is {}; allowed: multiples of num_kv_heads ({})",
                            spec.num_q_heads, spec.num_kv_heads);
  }
  if (spec.page_size < 1) {
    return invalid_argument("page_size is {}; allowed: 1 and more", spec.page_size);
  }
  if (spec.sink_tokens < 0 || spec.recent_tokens < 0) {
    return invalid_argument("sink_tokens is {}, recent_tokens {}; allowed: 0 and more",
                            spec.sink_tokens, spec.recent_tokens);
  }
  if (spec.key_dim < 1 || spec.group_size() > spec.key_dim) {
    return invalid_argument("key_dim is {}; allowed: at least the {} query heads of a kv head",
                            spec.key_dim, spec.group_size());
  }
  if (!(spec.softmax_scale > 0.0f)) {
    return invalid_argument("softmax_scale is {}; allowed: more than 0", spec.softmax_scale);
  }
  if (!(spec.kept >= 0.0 && spec.kept <= 1.0)) {
    return invalid_argument("kept is {}; allowed: 0 to 1", spec.kept);
  }
  if (!(spec.near_threshold >= 0.0 && spec.near_threshold <= 1.0)) {
    return invalid_argument("near_threshold is {}; allowed: 0 to 1", spec.near_threshold);
  }
  return spec.kind == WorkloadKind::kDump ? check_sample(spec) : Status();
}

GroupRange selectable_groups(const WorkloadSpec& spec) {
  KvFormat format;
  format.page_size = spec.page_size;
  const int64_t quantized = format.num_quantized_pages(spec.kv_len) * spec.page_size;
  const int64_t first_recent = spec.kv_len - spec.query_len + 1 - spec.recent_tokens;
  const int64_t first = (int64_t{spec.sink_tokens} + kTileTokens - 1) / kTileTokens;
  const int64_t last = std::min(quantized, std::max<int64_t>(first_recent, 0)) / kTileTokens;
  return {first, std::max(first, last)};
}

int64_t workload_bytes(const WorkloadSpec& spec) {
  const int64_t value_dim = spec.op == Op::kMla ? 0 : spec.value_dim;
  const int64_t q = int64_t{spec.query_len} * spec.num_q_heads * spec.key_dim;
  return spec.batch * dtype_bytes(spec.dtype) *
         (q + spec.kv_len * spec.num_kv_heads * (spec.key_dim + value_dim));
}

Result<Workload> make_workload(const WorkloadSpec& spec, int32_t num_threads) {
  LD_RETURN_IF_ERROR(check(spec));
  Workload work;
  work.spec = spec;
  LD_RETURN_IF_ERROR(allocate(work));
  if (spec.kind == WorkloadKind::kDump) {
    fill_from_sample(work, num_threads);
    return work;
  }
  fill_queries(work);
  fill_background(spec, kKeyStream, work.k, num_threads);
  fill_background(spec, kValueStream, work.v, num_threads);
  const int64_t groups = selectable_groups(spec).size();
  for (int32_t b = 0; b < spec.batch; ++b) {
    const std::vector<int64_t> hits = hits_per_head(spec, b, groups);
    for (int32_t head = 0; head < spec.num_kv_heads; ++head) {
      plant_anchors(work, b, head);
      plant_head(work, b, head, hits[size_t(head)]);
    }
  }
  return work;
}

}  // namespace longdecode::bench
