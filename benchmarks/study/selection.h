// Tile selection from per-tile maxima of scores, and what it costs: the measures of the study.
#ifndef LONGDECODE_BENCHMARKS_STUDY_SELECTION_H_
#define LONGDECODE_BENCHMARKS_STUDY_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longdecode::study {

inline constexpr int32_t kBaseTile = 16;  // tokens; wider tiles are unions of these

struct SelectionRule {
  int32_t tile = 16;
  double margin_sigmas = 0.0;
  double delta = 5.0;
};
std::vector<SelectionRule> selection_rules();

// Scores of one query row, by token, and what follows from them by tile of kBaseTile tokens.
struct RowScores {
  std::vector<double> score;      // [kv_len]
  std::vector<double> max;        // [num_tiles] over the tokens that are not forced, or -inf
  std::vector<double> weight;     // [num_tiles] sum of exp(score - reference)
  std::vector<float> weighted_v;  // [num_tiles, head_dim] sum of exp(score - reference) * v
  double pseudo_max = 0.0;
  // Of the exact rows: the largest score, and the sums over all tiles.
  double reference = 0.0;
  double total_weight = 0.0;
  std::vector<double> dense_o;  // [head_dim]

  void sum_tiles(size_t head_dim);
};

// The query rows of a group at one position.
struct GroupQuery {
  int64_t kv_len = 0;
  int64_t num_quantized = 0;  // tokens in full pages
  int32_t head_dim = 0;
  int32_t page_size = 0;
  std::vector<uint8_t> forced;   // [num_tiles] holds a sink, recent or unquantised token
  std::vector<RowScores> exact;  // [group] of the keys themselves
  // Of the grid: stored scores, and scan maxima by tile with the deviation of their noise by page.
  std::vector<RowScores> stored;                // [group]
  std::vector<std::vector<double>> scan_max;    // [group][num_tiles]
  std::vector<std::vector<double>> scan_sigma;  // [group][num_pages]

  int64_t num_tiles() const { return (kv_len + kBaseTile - 1) / kBaseTile; }
  int64_t tokens_of(int64_t tile) const;
};

// Sums over queries; means are sums / count.
struct SelectionSums {
  double queries = 0.0;  // (query position, kv head)
  double kept = 0.0;     // kept_fraction
  double exact_kept = 0.0;
  double bytes = 0.0;            // read / bytes of dense attention over fp16 keys and values
  double agreement = 0.0;        // common / all of the tiles that either selects, forced ones aside
  double exact_tiles = 0.0;      // that exact selection keeps, forced ones aside
  double wrongly_dropped = 0.0;  // of them
  double rows = 0.0;             // (query position, q head)
  double dropped_mass = 0.0;     // softmax mass of the tokens that are not attended
  double dropped_mass_max = 0.0;  // the largest
  double rows_over_1_percent = 0.0;
  double exact_dropped_mass = 0.0;  // the same with exact selection
  double output_error = 0.0;        // |o - o_dense| / |o_dense|
  double needles = 0.0;
  double needles_kept = 0.0;  // with the score of the pseudo-max
  double weak_kept = 0.0;     // kWeakNeedle nats below it

  void add(const SelectionSums& other);
};

// Applies a rule and adds what comes of it.
void measure_selection(const GroupQuery& query, const SelectionRule& rule, SelectionSums* sums);

}  // namespace longdecode::study

#endif  // LONGDECODE_BENCHMARKS_STUDY_SELECTION_H_
