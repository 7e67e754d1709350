#include "benchmarks/study/head_study.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/float_convert.h"
#include "base/mix_bits.h"
#include "base/status_macros.h"
#include "benchmarks/study/scan.h"
#include "longdecode/kv_format.h"

namespace longdecode::study {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float round_to_f16(float value) { return f16_to_f32(f32_to_f16(value)); }

class HeadStudy {
 public:
  HeadStudy(const LayerSample& sample, int32_t kv_head, uint64_t seed);
  Status quantize();
  void study_position(size_t position_idx);
  HeadResult take() { return std::move(result_); }

 private:
  std::vector<float> scaled_query(size_t position_idx, int32_t head) const;
  std::vector<double> true_scores(const std::vector<float>& q, int64_t kv_len) const;
  GroupQuery make_query(int64_t kv_len, int32_t page_size,
                        const std::vector<std::vector<double>>& scores) const;
  RowScores row_scores(const GroupQuery& query, std::vector<double> scores, double reference) const;
  void study_grid(size_t grid_idx, const std::vector<std::vector<float>>& q, GroupQuery& query);
  void score_row(size_t grid_idx, const std::vector<float>& q, size_t head, GroupQuery& query);
  void study_needle(size_t grid_idx, size_t position_idx, const std::vector<std::vector<float>>& q,
                    const GroupQuery& query);
  void record_pseudo_max(const GroupQuery& query);
  std::vector<float> page_keys(int64_t page, int32_t page_size) const;
  static bool is_forced(const GroupQuery& query, int64_t token) {
    return token < kSinkTokens || token >= query.num_quantized ||
           token > query.kv_len - 1 - kRecentTokens;
  }

  const LayerSample& sample_;
  int32_t kv_head_;
  uint64_t seed_;
  int32_t dim_;
  int64_t num_tokens_;
  std::vector<GridVariant> variants_ = grid_variants();
  std::vector<SelectionRule> rules_ = selection_rules();
  std::vector<float> keys_;                   // [num_tokens, dim] rounded to fp16
  std::vector<float> values_;                 // as keys_
  std::vector<double> mean_;                  // [dim] of keys_
  std::vector<float> centred_;                // [dim, num_tokens] keys_ - mean_
  std::vector<std::vector<PageGrid>> grids_;  // [variant * page sizes + page size][page]
  HeadResult result_;
};

HeadStudy::HeadStudy(const LayerSample& sample, int32_t kv_head, uint64_t seed)
    : sample_(sample),
      kv_head_(kv_head),
      seed_(seed),
      dim_(sample.head_dim),
      num_tokens_(sample.num_tokens()),
      mean_(static_cast<size_t>(sample.head_dim)) {
  const int64_t row = int64_t{sample.num_kv_heads} * dim_;
  for (int64_t t = 0; t < num_tokens_; ++t) {
    for (int32_t c = 0; c < dim_; ++c) {
      const auto i = static_cast<size_t>(t * row + kv_head * dim_ + c);
      keys_.push_back(round_to_f16(sample.k[i]));
      values_.push_back(round_to_f16(sample.v[i]));
      mean_[static_cast<size_t>(c)] += keys_.back() / static_cast<double>(num_tokens_);
    }
  }
  for (int32_t c = 0; c < dim_; ++c) {
    for (int64_t t = 0; t < num_tokens_; ++t) {
      centred_.push_back(static_cast<float>(keys_[static_cast<size_t>(t * dim_ + c)] -
                                            mean_[static_cast<size_t>(c)]));
    }
  }
  const size_t num_grids = variants_.size() * kPageSizes.size();
  result_.scores.resize(num_grids);
  result_.selections.assign(num_grids, std::vector<SelectionSums>(rules_.size()));
}

std::vector<float> HeadStudy::page_keys(int64_t page, int32_t page_size) const {
  std::vector<float> keys(static_cast<size_t>(dim_) * static_cast<size_t>(page_size));
  for (int32_t c = 0; c < dim_; ++c) {
    for (int32_t t = 0; t < page_size; ++t) {
      keys[static_cast<size_t>(c * page_size + t)] =
          keys_[static_cast<size_t>((page * page_size + t) * dim_ + c)];
    }
  }
  return keys;
}

Status HeadStudy::quantize() {
  for (const GridVariant& variant : variants_) {
    for (const int32_t page_size : kPageSizes) {
      std::vector<PageGrid> pages;
      if (variant.production) {
        LD_ASSIGN_OR_RETURN(pages, quantize_by_product(keys_, dim_, page_size));
      } else {
        for (int64_t page = 0; (page + 1) * page_size <= num_tokens_; ++page) {
          pages.push_back(
              quantize_page(variant, page_keys(page, page_size).data(), dim_, page_size));
        }
      }
      grids_.push_back(std::move(pages));
    }
  }
  return {};
}

std::vector<float> HeadStudy::scaled_query(size_t position_idx, int32_t head) const {
  const auto num_q_heads = static_cast<size_t>(sample_.num_kv_heads * sample_.group);
  const auto dim = static_cast<size_t>(dim_);
  const float* q =
      sample_.q.data() +
      (position_idx * num_q_heads + static_cast<size_t>(kv_head_ * sample_.group + head)) * dim;
  std::vector<float> scaled(q, q + dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim_));
  for (float& value : scaled) value *= scale;
  return scaled;
}

std::vector<double> HeadStudy::true_scores(const std::vector<float>& q, int64_t kv_len) const {
  std::vector<float> sums(static_cast<size_t>(num_tokens_), 0.0f);
  add_weighted(q, centred_.data(), num_tokens_, sums.data());
  double of_mean = 0.0;
  for (size_t c = 0; c < q.size(); ++c) of_mean += q[c] * mean_[c];
  std::vector<double> scores(static_cast<size_t>(kv_len));
  for (size_t t = 0; t < scores.size(); ++t) scores[t] = of_mean + sums[t];
  return scores;
}

RowScores HeadStudy::row_scores(const GroupQuery& query, std::vector<double> scores,
                                double reference) const {
  RowScores row;
  const auto num_tiles = static_cast<size_t>(query.num_tiles());
  const auto dim = static_cast<size_t>(dim_);
  row.max.assign(num_tiles, -kInfinity);
  row.weight.assign(num_tiles, 0.0);
  row.weighted_v.assign(num_tiles * dim, 0.0f);
  row.pseudo_max = -kInfinity;
  for (size_t t = 0; t < scores.size(); ++t) {
    const size_t tile = t / kBaseTile;
    double& max = is_forced(query, static_cast<int64_t>(t)) ? row.pseudo_max : row.max[tile];
    max = std::max(max, scores[t]);
    const double weight = std::exp(scores[t] - reference);
    row.weight[tile] += weight;
    const auto weight32 = static_cast<float>(weight);
    const float* v = values_.data() + t * dim;
    float* sum = row.weighted_v.data() + tile * dim;
    for (size_t c = 0; c < dim; ++c) sum[c] += weight32 * v[c];
  }
  row.score = std::move(scores);
  return row;
}

GroupQuery HeadStudy::make_query(int64_t kv_len, int32_t page_size,
                                 const std::vector<std::vector<double>>& scores) const {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 1, dim_, page_size);
  GroupQuery query;
  query.kv_len = kv_len;
  query.num_quantized = format.num_quantized_pages(kv_len) * page_size;
  query.head_dim = dim_;
  query.page_size = page_size;
  query.forced.assign(static_cast<size_t>(query.num_tiles()), 0);
  for (int64_t t = 0; t < kv_len; ++t) {
    if (is_forced(query, t)) query.forced[static_cast<size_t>(t / kBaseTile)] = 1;
  }
  for (const std::vector<double>& row : scores) {
    const double reference = *std::max_element(row.begin(), row.end());
    query.exact.push_back(row_scores(query, row, reference));
    query.exact.back().reference = reference;
    query.exact.back().sum_tiles(static_cast<size_t>(dim_));
  }
  query.stored.resize(scores.size());
  query.scan_max.resize(scores.size());
  query.scan_sigma.resize(scores.size());
  return query;
}

void HeadStudy::score_row(size_t grid_idx, const std::vector<float>& q, size_t head,
                          GroupQuery& query) {
  const GridVariant& variant = variants_[grid_idx / kPageSizes.size()];
  const std::vector<double>& truth = query.exact[head].score;
  std::vector<double> stored = truth;  // unquantised keys are read as they are
  query.scan_max[head].assign(static_cast<size_t>(query.num_tiles()), -kInfinity);
  query.scan_sigma[head].clear();
  double sum = 0.0, sum2 = 0.0, error = 0.0, error2 = 0.0, stored_error2 = 0.0;
  for (int64_t page = 0; page * query.page_size < query.num_quantized; ++page) {
    const PageScores scores =
        score_page(variant, grids_[grid_idx][static_cast<size_t>(page)], q, true);
    query.scan_sigma[head].push_back(scores.sigma);
    for (int32_t i = 0; i < query.page_size; ++i) {
      const int64_t token = page * query.page_size + i;
      const auto t = static_cast<size_t>(token);
      const double exact = scores.stored[static_cast<size_t>(i)];
      const double scan = scores.scan[static_cast<size_t>(i)];
      stored[t] = exact;
      if (!is_forced(query, token)) {
        double& max = query.scan_max[head][t / kBaseTile];
        max = std::max(max, scan);
      }
      sum += exact;
      sum2 += exact * exact;
      error += scan - exact;
      error2 += (scan - exact) * (scan - exact);
      stored_error2 += (exact - truth[t]) * (exact - truth[t]);
    }
  }
  query.stored[head] = row_scores(query, std::move(stored), query.exact[head].reference);
  if (query.num_quantized == 0) return;
  const auto n = static_cast<double>(query.num_quantized);
  const double deviation = std::sqrt(std::max(sum2 / n - sum / n * sum / n, 0.0));
  ScoreSums one;
  one.rows = 1.0;
  one.rms = std::sqrt(error2 / n);
  one.relative = one.rms / deviation;
  one.bias = std::fabs(error / n);
  one.stored = std::sqrt(stored_error2 / n);
  result_.scores[grid_idx].add(one);
}

void HeadStudy::study_needle(size_t grid_idx, size_t position_idx,
                             const std::vector<std::vector<float>>& q, const GroupQuery& query) {
  const GridVariant& variant = variants_[grid_idx / kPageSizes.size()];
  // A token that is forced with neither page size.
  const KvFormat widest =
      KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 1, dim_, kPageSizes.back());
  const int64_t end = std::min(widest.num_quantized_pages(query.kv_len) * kPageSizes.back(),
                               query.kv_len - kRecentTokens);
  if (end <= kSinkTokens) return;
  const uint64_t hash =
      split_mix(seed_ + split_mix(static_cast<uint64_t>(kv_head_) + split_mix(position_idx)));
  const int64_t token =
      kSinkTokens + static_cast<int64_t>(hash % static_cast<uint64_t>(end - kSinkTokens));
  const size_t head = position_idx % q.size();
  const std::vector<float> keys = page_keys(token / query.page_size, query.page_size);
  const auto row = static_cast<int32_t>(token % query.page_size);
  const double target = query.exact[head].pseudo_max;
  const NeedleScan strong = scan_needle(variant, keys, row, q[head], target);
  const NeedleScan weak = scan_needle(variant, keys, row, q[head], target - kWeakNeedle);
  for (size_t r = 0; r < rules_.size(); ++r) {
    const double threshold = query.stored[head].pseudo_max - rules_[r].delta;
    const auto found = [&](const NeedleScan& needle) {
      return needle.score + rules_[r].margin_sigmas * needle.sigma >= threshold ? 1.0 : 0.0;
    };
    SelectionSums& sums = result_.selections[grid_idx][r];
    sums.needles += 1.0;
    sums.needles_kept += found(strong);
    sums.weak_kept += found(weak);
  }
}

void HeadStudy::study_grid(size_t grid_idx, const std::vector<std::vector<float>>& q,
                           GroupQuery& query) {
  for (size_t head = 0; head < q.size(); ++head) score_row(grid_idx, q[head], head, query);
  for (size_t r = 0; r < rules_.size(); ++r) {
    measure_selection(query, rules_[r], &result_.selections[grid_idx][r]);
  }
}

void HeadStudy::record_pseudo_max(const GroupQuery& query) {
  for (const RowScores& row : query.exact) {
    PseudoMax entry;
    entry.excess = row.reference - row.pseudo_max;
    const auto at = std::find(row.score.begin(), row.score.end(), row.pseudo_max);
    const auto token = static_cast<int64_t>(at - row.score.begin());
    entry.from = token == 0            ? PseudoMaxFrom::kFirstToken
                 : token < kSinkTokens ? PseudoMaxFrom::kSink
                                       : PseudoMaxFrom::kRecent;
    result_.pseudo_max.push_back(entry);
  }
}

void HeadStudy::study_position(size_t position_idx) {
  const int64_t kv_len = sample_.positions[position_idx] + 1;
  std::vector<std::vector<float>> q;
  std::vector<std::vector<double>> scores;
  for (int32_t head = 0; head < sample_.group; ++head) {
    q.push_back(scaled_query(position_idx, head));
    scores.push_back(true_scores(q.back(), kv_len));
  }
  for (size_t p = 0; p < kPageSizes.size(); ++p) {
    GroupQuery query = make_query(kv_len, kPageSizes[p], scores);
    for (size_t v = 0; v < variants_.size(); ++v) {
      const size_t grid_idx = v * kPageSizes.size() + p;
      study_grid(grid_idx, q, query);
      study_needle(grid_idx, position_idx, q, query);
    }
    if (kPageSizes[p] == 128) record_pseudo_max(query);
  }
}

}  // namespace

void ScoreSums::add(const ScoreSums& other) {
  rows += other.rows;
  relative += other.relative;
  rms += other.rms;
  bias += other.bias;
  stored += other.stored;
}

void HeadResult::add(const HeadResult& other) {
  if (scores.empty()) {
    *this = other;
    return;
  }
  for (size_t g = 0; g < scores.size(); ++g) {
    scores[g].add(other.scores[g]);
    for (size_t r = 0; r < selections[g].size(); ++r) selections[g][r].add(other.selections[g][r]);
  }
  pseudo_max.insert(pseudo_max.end(), other.pseudo_max.begin(), other.pseudo_max.end());
}

Result<HeadResult> study_head(const LayerSample& sample, int32_t kv_head, uint64_t seed) {
  HeadStudy study(sample, kv_head, seed);
  LD_RETURN_IF_ERROR(study.quantize());
  for (size_t i = 0; i < sample.positions.size(); ++i) study.study_position(i);
  return study.take();
}

}  // namespace longdecode::study
