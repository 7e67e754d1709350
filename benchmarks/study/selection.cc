#include "benchmarks/study/selection.h"

#include <algorithm>
#include <cmath>

namespace longdecode::study {
namespace {

// Tiles of rule.tile tokens in which some row has a token of at least its threshold: by base tile.
template <typename TileScore>
std::vector<uint8_t> select(const GroupQuery& query, const SelectionRule& rule,
                            const std::vector<RowScores>& rows, const TileScore& tile_score) {
  const int64_t tiles_each = rule.tile / kBaseTile;
  std::vector<uint8_t> kept(static_cast<size_t>(query.num_tiles()), 0);
  for (int64_t first = 0; first < query.num_tiles(); first += tiles_each) {
    const int64_t end = std::min(first + tiles_each, query.num_tiles());
    bool keep = false;
    for (int64_t t = first; t < end; ++t) {
      keep = keep || query.forced[static_cast<size_t>(t)] != 0;
      for (size_t g = 0; g < rows.size(); ++g) {
        keep = keep || tile_score(g, static_cast<size_t>(t)) >= rows[g].pseudo_max - rule.delta;
      }
    }
    std::fill(kept.begin() + first, kept.begin() + end, static_cast<uint8_t>(keep));
  }
  return kept;
}

// Of one query row: dropped mass by exact scores; output of the kept tiles against all of them.
void measure_row(const RowScores& exact, const RowScores& stored, const std::vector<uint8_t>& kept,
                 const std::vector<uint8_t>& exact_kept, size_t dim, SelectionSums* sums) {
  double dropped = 0.0;
  double exact_dropped = 0.0;
  double stored_total = 0.0;
  std::vector<float> o(dim, 0.0f);
  for (size_t t = 0; t < kept.size(); ++t) {
    if (exact_kept[t] == 0) exact_dropped += exact.weight[t];
    if (kept[t] == 0) {
      dropped += exact.weight[t];
      continue;
    }
    stored_total += stored.weight[t];
    const float* tile_o = stored.weighted_v.data() + t * dim;
    for (size_t c = 0; c < dim; ++c) o[c] += tile_o[c];
  }
  const double total = exact.total_weight;
  double error2 = 0.0;
  double norm2 = 0.0;
  for (size_t c = 0; c < dim; ++c) {
    error2 += std::pow(o[c] / stored_total - exact.dense_o[c], 2);
    norm2 += std::pow(exact.dense_o[c], 2);
  }
  sums->rows += 1.0;
  sums->dropped_mass += dropped / total;
  sums->dropped_mass_max = std::max(sums->dropped_mass_max, dropped / total);
  sums->rows_over_1_percent += dropped / total > 0.01 ? 1.0 : 0.0;
  sums->exact_dropped_mass += exact_dropped / total;
  sums->output_error += std::sqrt(error2 / norm2);
}

}  // namespace

std::vector<SelectionRule> selection_rules() {
  std::vector<SelectionRule> rules;
  for (const int32_t tile : {16, 32}) {
    for (const double margin : {0.0, 0.5, 1.0, 2.0}) {
      for (const double delta : {5.0, 6.0, 7.0}) rules.push_back({tile, margin, delta});
    }
  }
  return rules;
}

void RowScores::sum_tiles(size_t head_dim) {
  total_weight = 0.0;
  dense_o.assign(head_dim, 0.0);
  for (size_t t = 0; t < weight.size(); ++t) {
    total_weight += weight[t];
    for (size_t c = 0; c < head_dim; ++c) dense_o[c] += weighted_v[t * head_dim + c];
  }
  for (double& value : dense_o) value /= total_weight;
}

int64_t GroupQuery::tokens_of(int64_t tile) const {
  return std::min<int64_t>(kBaseTile, kv_len - tile * kBaseTile);
}

void SelectionSums::add(const SelectionSums& other) {
  queries += other.queries;
  kept += other.kept;
  exact_kept += other.exact_kept;
  bytes += other.bytes;
  agreement += other.agreement;
  exact_tiles += other.exact_tiles;
  wrongly_dropped += other.wrongly_dropped;
  rows += other.rows;
  dropped_mass += other.dropped_mass;
  dropped_mass_max = std::max(dropped_mass_max, other.dropped_mass_max);
  rows_over_1_percent += other.rows_over_1_percent;
  exact_dropped_mass += other.exact_dropped_mass;
  output_error += other.output_error;
  needles += other.needles;
  needles_kept += other.needles_kept;
  weak_kept += other.weak_kept;
}

void measure_selection(const GroupQuery& query, const SelectionRule& rule, SelectionSums* sums) {
  const auto tiles_per_page = static_cast<size_t>(query.page_size / kBaseTile);
  const auto kept = select(query, rule, query.stored, [&](size_t g, size_t t) {
    const size_t page = t / tiles_per_page;
    const bool scanned = page < query.scan_sigma[g].size();
    return query.scan_max[g][t] + (scanned ? rule.margin_sigmas * query.scan_sigma[g][page] : 0.0);
  });
  const auto exact_kept =
      select(query, rule, query.exact, [&](size_t g, size_t t) { return query.exact[g].max[t]; });

  double attended = 0.0;
  double exact_attended = 0.0;
  double attended_quantized = 0.0;
  double common = 0.0;
  double either = 0.0;
  for (int64_t tile = 0; tile < query.num_tiles(); ++tile) {
    const auto t = static_cast<size_t>(tile);
    const auto tokens = static_cast<double>(query.tokens_of(tile));
    attended += kept[t] != 0 ? tokens : 0.0;
    exact_attended += exact_kept[t] != 0 ? tokens : 0.0;
    if (tile * kBaseTile < query.num_quantized) attended_quantized += kept[t] != 0 ? tokens : 0.0;
    if (query.forced[t] != 0) continue;
    common += kept[t] != 0 && exact_kept[t] != 0 ? 1.0 : 0.0;
    either += kept[t] != 0 || exact_kept[t] != 0 ? 1.0 : 0.0;
    sums->exact_tiles += exact_kept[t];
    sums->wrongly_dropped += exact_kept[t] != 0 && kept[t] == 0 ? 1.0 : 0.0;
  }
  const auto kv_len = static_cast<double>(query.kv_len);
  const double dim = query.head_dim;
  // Codes, steps and zeros of all full pages; residual and V of attended tokens; the fp16 keys of
  // tokens that are in no full page.
  const double bytes =
      static_cast<double>(query.num_quantized) * (dim / 4 + 4 * dim / query.page_size) +
      attended_quantized * dim + attended * 2 * dim +
      (kv_len - static_cast<double>(query.num_quantized)) * 2 * dim;
  sums->queries += 1.0;
  sums->kept += attended / kv_len;
  sums->exact_kept += exact_attended / kv_len;
  sums->bytes += bytes / (kv_len * 4 * dim);
  sums->agreement += either > 0.0 ? common / either : 1.0;
  for (size_t g = 0; g < query.exact.size(); ++g) {
    measure_row(query.exact[g], query.stored[g], kept, exact_kept,
                static_cast<size_t>(query.head_dim), sums);
  }
}

}  // namespace longdecode::study
