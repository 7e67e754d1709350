// `longdecode bench model --random-weights`.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "bench_model.h"
#include "build_info.h"
#include "longdecode/attention.h"
#include "option_checks.h"
#include "output.h"
#ifdef LONGDECODE_HAS_CUDA
#include "benchmarks/random_model/random_model_bench.h"
#endif

namespace longdecode::tool {

#ifdef LONGDECODE_HAS_CUDA
namespace {

using gpu_bench::RandomModelRow;
using Json = nlohmann::ordered_json;

constexpr const char* kNote =
    "random weights, planted queries and keys: throughput only, the text means nothing";

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double stdev(const std::vector<double>& values) {  // of a sample; 0 for one repetition
  double sum = 0.0;
  for (const double value : values) sum += (value - mean(values)) * (value - mean(values));
  return values.size() < 2 ? 0.0 : std::sqrt(sum / static_cast<double>(values.size() - 1));
}

const char* method_name(Method method) { return method == Method::kFfd ? "ffd" : "dense"; }

const char* graph_name(runner::GraphMode graph) {
  if (graph == runner::GraphMode::kOff) return "off";
  return graph == runner::GraphMode::kBlock ? "block" : "any-length";
}

double per(double sum_s, int64_t count, double unit) {
  return count == 0 ? 0.0 : unit * sum_s / static_cast<double>(count);
}

Json row_json(const RandomModelRow& row, const DeviceInfo& device) {
  const runner::GraphStats& graph = row.graph_stats;
  return {{"model", row.model},
          {"weights", "random"},
          {"note", kNote},
          {"device", device.name},
          {"method", method_name(row.method)},
          {"kernel", row.kernel},
          {"batch", row.batch},
          {"depth", row.depth},
          {"test", fmt::format("tg{}", row.num_steps)},
          {"tok_s", mean(row.tok_s)},
          {"tok_s_stdev", stdev(row.tok_s)},
          {"samples_tok_s", row.tok_s},
          {"bound_tok_s", row.bound_tok_s()},
          {"bound_bytes_per_s", gpu_bench::kBoundBandwidth},
          {"weight_bytes", row.weight_bytes},
          {"kv_bytes", row.kv_bytes},
          {"kept_fraction", row.kept_fraction},
          {"step_us", 1e6 * row.batch / mean(row.tok_s)},
          {"weights_us", row.breakdown.weights_us},
          {"attention_us", row.breakdown.attention_us},
          {"other_us", row.breakdown.other_us},
          {"gaps_us", row.breakdown.gaps_us},
          {"graph", graph_name(row.graph)},
          {"graph_nodes", graph.num_nodes},
          {"graph_captures", graph.num_captures},
          {"capture_us", per(graph.capture_s, graph.num_captures, 1e6)},
          {"instantiate_us", per(graph.instantiate_s, graph.num_captures, 1e6)},
          {"launch_us", per(graph.launch_s, graph.num_replays, 1e6)},
          {"kv_type", "bf16"},
          {"version", build_info().version},
          {"commit", build_info().commit}};
}

std::string rows_table(const std::vector<RandomModelRow>& rows, const DeviceInfo& device) {
  std::string table = fmt::format(
      "{}: {}\n{:<14}{:<7}{:>6}{:>8}{:>12}{:>10}{:>8}{:>7}{:>9}"
      "{:>9}{:>9}{:>8}{:>8}\n",
      device.name, kNote, "model", "method", "batch", "depth", "graph", "tok/s", "bound", "kept",
      "step us", "weights", "attend", "other", "gaps");
  for (const RandomModelRow& row : rows) {
    table += fmt::format(
        "{:<14}{:<7}{:>6}{:>8}{:>12}{:>10.1f}{:>8.1f}{:>7.3f}{:>9.1f}{:>9.1f}{:>9.1f}{:>8.1f}"
        "{:>8.1f}\n",
        row.model, method_name(row.method), row.batch, row.depth, graph_name(row.graph),
        mean(row.tok_s), row.bound_tok_s(), row.kept_fraction, 1e6 * row.batch / mean(row.tok_s),
        row.breakdown.weights_us, row.breakdown.attention_us, row.breakdown.other_us,
        row.breakdown.gaps_us);
  }
  return table;
}

}  // namespace

Status check_bench_random_model(const BenchModelOptions& options) {
  LD_RETURN_IF_ERROR(
      check_choice("--random-weights", options.random_model, gpu_bench::random_model_names()));
  LD_RETURN_IF_ERROR(
      check_choice("--device of --random-weights", options.session.device, {"auto", "cuda"}));
  if (options.decode_tokens == 0) return invalid_argument("-n is 0; 1 or more is needed");
  return {};
}

Status run_bench_random_model(const BenchModelOptions& options) {
  LD_ASSIGN_OR_RETURN(const JsonOutput output, JsonOutput::open(options.json_path, {}));
  gpu_bench::RandomModelSpec spec;
  LD_ASSIGN_OR_RETURN(spec.device, detect_device(DeviceType::kCuda));
  spec.model = options.random_model;
  spec.depths = options.depths;
  spec.batches = options.batches;
  spec.num_steps = options.decode_tokens;
  spec.num_reps = options.num_reps;
  spec.ffd = options.session.ffd;
  for (const std::string& method : options.methods) spec.methods.push_back(parse_method(method));
  spec.graphs.clear();
  for (const std::string& graph : options.session.graphs) spec.graphs.push_back(parse_graph(graph));
  if (options.progress) spec.progress = [](const std::string& line) { write_stderr(line + "\n"); };
  std::vector<RandomModelRow> rows;
  const Status measured = run_random_model_bench(spec, &rows);
  if (rows.empty()) LD_RETURN_IF_ERROR(measured);
  Json list = Json::array();
  for (const RandomModelRow& row : rows) list.push_back(row_json(row, spec.device));
  if (!output.is_stdout()) LD_RETURN_IF_ERROR(write_stdout(rows_table(rows, spec.device)));
  LD_RETURN_IF_ERROR(output.write(list.dump(2)));
  return measured;
}

#else

Status check_bench_random_model(const BenchModelOptions&) {
  return make_status(StatusCode::kUnavailable,
                     "--random-weights runs on CUDA; this build has no CUDA backend");
}
Status run_bench_random_model(const BenchModelOptions& options) {
  return check_bench_random_model(options);
}

#endif

}  // namespace longdecode::tool
