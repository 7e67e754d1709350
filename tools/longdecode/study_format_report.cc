#include "study_format_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "benchmarks/study/scan.h"
#include "build_info.h"

namespace longdecode::tool {
namespace {

using Json = nlohmann::ordered_json;
using study::GridVariant;
using study::kPageSizes;
using study::LayerResult;
using study::SelectionRule;
using study::SelectionSums;

constexpr const char* kAllTexts = "texts";  // the texts together

// Five significant digits: the file is committed and read by people.
double rounded(double value) { return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr); }

double ratio(double sum, double count) { return count > 0.0 ? rounded(sum / count) : 0.0; }

// Sums of some layers under one name.
struct Slice {
  std::string source;
  std::string layers;  // "0", "1+" or a layer's index
  study::HeadResult sums;
};

void add_to_slice(const LayerResult& layer, const std::string& source, const std::string& layers,
                  std::vector<Slice>* slices) {
  auto slice = std::find_if(slices->begin(), slices->end(), [&](const Slice& s) {
    return s.source == source && s.layers == layers;
  });
  if (slice == slices->end()) {
    slices->push_back({source, layers, layer.sums});
    return;
  }
  slice->sums.add(layer.sums);
}

bool is_text(const LayerResult& layer) { return !layer.source.starts_with("synthetic"); }

// By source, layer 0 apart: the slices for which every rule is written.
std::vector<Slice> make_slices(const std::vector<LayerResult>& layers) {
  std::vector<Slice> slices;
  for (const LayerResult& layer : layers) {
    const std::string name = layer.layer_idx == 0 ? "0" : "1+";
    add_to_slice(layer, layer.source, is_text(layer) ? name : "all", &slices);
  }
  for (const LayerResult& layer : layers) {
    if (!is_text(layer)) continue;
    add_to_slice(layer, kAllTexts, layer.layer_idx == 0 ? "0" : "1+", &slices);
    add_to_slice(layer, kAllTexts, "all", &slices);
  }
  return slices;
}

// Of the texts together, layer by layer.
std::vector<Slice> make_layer_slices(const std::vector<LayerResult>& layers) {
  std::vector<Slice> slices;
  for (const LayerResult& layer : layers) {
    if (is_text(layer)) {
      add_to_slice(layer, kAllTexts, std::to_string(layer.layer_idx), &slices);
    }
  }
  return slices;
}

const Json kScoreColumns = {"source",         "layers",           "grid",
                            "page_size",      "scan_error_rel",   "scan_error_nats",
                            "scan_bias_nats", "stored_error_nats"};

Json score_rows(const std::vector<Slice>& slices) {
  const std::vector<GridVariant> variants = study::grid_variants();
  Json rows = Json::array();
  for (const Slice& slice : slices) {
    for (size_t g = 0; g < slice.sums.scores.size(); ++g) {
      const study::ScoreSums& s = slice.sums.scores[g];
      rows.push_back({slice.source, slice.layers, variants[g / kPageSizes.size()].name,
                      kPageSizes[g % kPageSizes.size()], ratio(s.relative, s.rows),
                      ratio(s.rms, s.rows), ratio(s.bias, s.rows), ratio(s.stored, s.rows)});
    }
  }
  return rows;
}

const Json kSelectionColumns = {"source",
                                "layers",
                                "grid",
                                "page_size",
                                "tile",
                                "margin_sigmas",
                                "delta",
                                "kept_fraction",
                                "exact_kept_fraction",
                                "bytes_of_dense",
                                "tile_agreement",
                                "tiles_wrongly_dropped",
                                "dropped_mass",
                                "dropped_mass_max",
                                "rows_over_1_percent",
                                "output_error",
                                "needles_kept",
                                "weak_needles_kept",
                                "exact_dropped_mass"};

Json selection_row(const Slice& slice, size_t grid_idx, const GridVariant& variant,
                   const SelectionRule& rule, const SelectionSums& s) {
  return {slice.source,
          slice.layers,
          variant.name,
          kPageSizes[grid_idx % kPageSizes.size()],
          rule.tile,
          rule.margin_sigmas,
          rule.delta,
          ratio(s.kept, s.queries),
          ratio(s.exact_kept, s.queries),
          ratio(s.bytes, s.queries),
          ratio(s.agreement, s.queries),
          ratio(s.wrongly_dropped, s.exact_tiles),
          ratio(s.dropped_mass, s.rows),
          rounded(s.dropped_mass_max),
          ratio(s.rows_over_1_percent, s.rows),
          ratio(s.output_error, s.rows),
          ratio(s.needles_kept, s.needles),
          ratio(s.weak_kept, s.needles),
          ratio(s.exact_dropped_mass, s.rows)};
}

bool is_plain(const SelectionRule& rule) {
  return rule.tile == 16 && rule.margin_sigmas == 0.0 && rule.delta == 5.0;
}

constexpr size_t kProductGrid = 1;  // the product's variant with page 128

// `wanted` says which (slice, grid, rule) the file holds: all of them would be megabytes.
template <typename Wanted>
Json selection_rows(const std::vector<Slice>& slices, const Wanted& wanted) {
  const std::vector<GridVariant> variants = study::grid_variants();
  const std::vector<SelectionRule> rules = study::selection_rules();
  Json rows = Json::array();
  for (const Slice& slice : slices) {
    for (size_t g = 0; g < slice.sums.selections.size(); ++g) {
      for (size_t r = 0; r < rules.size(); ++r) {
        if (!wanted(slice, g, rules[r])) continue;
        rows.push_back(selection_row(slice, g, variants[g / kPageSizes.size()], rules[r],
                                     slice.sums.selections[g][r]));
      }
    }
  }
  return rows;
}

// Every rule for the texts together, tile 16 for each source.
bool wanted_of_sources(const Slice& slice, size_t, const SelectionRule& rule) {
  return slice.source == kAllTexts || rule.tile == 16;
}

// The plain rule for every grid, every margin and delta for the product's.
bool wanted_of_layers(const Slice&, size_t grid_idx, const SelectionRule& rule) {
  return is_plain(rule) || (grid_idx == kProductGrid && rule.tile == 16);
}

const Json kPseudoMaxColumns = {"source",           "layers",      "rows",       "from_first_token",
                                "from_other_sinks", "from_recent", "is_max",     "over_5_nats",
                                "excess_mean",      "excess_p50",  "excess_p90", "excess_p99",
                                "excess_max"};

Json pseudo_max_row(const Slice& slice) {
  std::vector<double> excess;
  double from[3] = {};
  double is_max = 0.0;
  double over_5 = 0.0;
  double sum = 0.0;
  for (const study::PseudoMax& entry : slice.sums.pseudo_max) {
    excess.push_back(entry.excess);
    from[static_cast<size_t>(entry.from)] += 1.0;
    is_max += entry.excess <= 0.0 ? 1.0 : 0.0;
    over_5 += entry.excess > 5.0 ? 1.0 : 0.0;
    sum += entry.excess;
  }
  std::sort(excess.begin(), excess.end());
  const auto n = static_cast<double>(excess.size());
  const auto quantile = [&](double q) {
    return rounded(excess[static_cast<size_t>(q * (n - 1.0) + 0.5)]);
  };
  return {slice.source,          slice.layers,      excess.size(),    ratio(from[0], n),
          ratio(from[1], n),     ratio(from[2], n), ratio(is_max, n), ratio(over_5, n),
          ratio(sum, n),         quantile(0.5),     quantile(0.9),    quantile(0.99),
          rounded(excess.back())};
}

Json pseudo_max_rows(const std::vector<Slice>& slices) {
  Json rows = Json::array();
  for (const Slice& slice : slices) {
    if (!slice.sums.pseudo_max.empty()) rows.push_back(pseudo_max_row(slice));
  }
  return rows;
}

// One row a line: a change of the study shows as a change of lines.
std::string table_text(const char* name, const Json& columns, const Json& rows) {
  std::string text = fmt::format(",\n\"{}\": {{\"columns\": {},\n\"rows\": [", name,
                                 columns.dump(-1, ' ', false, Json::error_handler_t::replace));
  const char* separator = "\n";
  for (const Json& row : rows) {
    text += separator + row.dump(-1, ' ', false, Json::error_handler_t::replace);
    separator = ",\n";
  }
  return text + "\n]}";
}

}  // namespace

std::string study_json(const StudyFacts& facts, const std::vector<LayerResult>& layers) {
  const Json head = {
      {"model", facts.model_path},
      {"model_name", facts.model_name},
      {"texts", facts.text_paths},
      {"context_len", facts.context_len},
      {"num_positions", facts.num_positions},
      {"seed", facts.seed},
      {"sink_tokens", study::kSinkTokens},
      {"recent_tokens", study::kRecentTokens},
      {"weak_needle_nats", study::kWeakNeedle},
      {"version", build_info().version},
      {"commit", build_info().commit},
  };
  std::string text = head.dump(1, ' ', false, Json::error_handler_t::replace);
  text.resize(text.rfind('\n'));
  const std::vector<Slice> slices = make_slices(layers);
  const std::vector<Slice> by_layer = make_layer_slices(layers);
  text += table_text("scores", kScoreColumns, score_rows(slices));
  text += table_text("layer_scores", kScoreColumns, score_rows(by_layer));
  text += table_text("selections", kSelectionColumns, selection_rows(slices, wanted_of_sources));
  text +=
      table_text("layer_selections", kSelectionColumns, selection_rows(by_layer, wanted_of_layers));
  text += table_text("pseudo_max", kPseudoMaxColumns, pseudo_max_rows(slices));
  text += table_text("layer_pseudo_max", kPseudoMaxColumns, pseudo_max_rows(by_layer));
  return text + "\n}";
}

std::string study_table(const std::vector<LayerResult>& layers) {
  const std::vector<GridVariant> variants = study::grid_variants();
  const std::vector<SelectionRule> rules = study::selection_rules();
  std::string table =
      fmt::format("{:<44}{:<32}{:>9}{:>9}{:>9}{:>9}\n", "source and layers",
                  "grid (page 128, tile 16, delta 5)", "scan_err", "kept", "dropped", "needles");
  for (const Slice& slice : make_slices(layers)) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const size_t g = v * kPageSizes.size() + 1;
      for (size_t r = 0; r < rules.size(); ++r) {
        if (!is_plain(rules[r])) continue;
        const SelectionSums& s = slice.sums.selections[g][r];
        const study::ScoreSums& e = slice.sums.scores[g];
        table += fmt::format("{:<44}{:<32}{:>9.4f}{:>9.4f}{:>9.5f}{:>9.4f}\n",
                             slice.source + ", layers " + slice.layers, variants[v].name,
                             ratio(e.relative, e.rows), ratio(s.kept, s.queries),
                             ratio(s.dropped_mass, s.rows), ratio(s.needles_kept, s.needles));
      }
    }
  }
  return table;
}

}  // namespace longdecode::tool
