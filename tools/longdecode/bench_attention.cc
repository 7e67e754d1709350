#include "bench_attention.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "commands.h"
#include "list_option.h"
#include "open_session.h"
#include "option_checks.h"
#include "output.h"
#include "output_flags.h"
#include "session_options.h"

namespace longdecode::tool {
namespace {

struct BenchAttentionOptions {
  ShapeRequest shape;
  std::string shapes_path;
  std::string device = "auto";
  int32_t num_threads = 0;
  std::string timing = "auto";
  std::optional<int32_t> num_reps;
  std::optional<int64_t> flush_bytes;
  std::string json_path;
};

constexpr const char* kFooter = R"(
Rows: time_us is the median of --reps calls, each after a flush of the caches (on CUDA with --timing
graph: of (8 x [flush, call] - 8 x [flush]) / 8, replayed as graphs). read_floor_us is a plain read
of necessary_bytes after the same flush, taken the same way. kept_fraction is what the kernel
attended, kept_planted what the input was made for. benchmarks/README.md defines every column.

Examples:
  longdecode bench attention --kv-len 16384,65536 --kept 0.01,1
  longdecode bench attention --op mla --method dense --num-q-heads 16 --kv-len 65536 --json -
  longdecode bench attention --device cuda --timing events --kv-len 262144 --json rows.json
  longdecode bench attention --shapes benchmarks/shapes/cpu.json --json rows.json)";

Result<bench::Timing> parse_timing(const std::string& name, DeviceType device) {
  const bool on_cpu = device == DeviceType::kCpu;
  if (name == "auto") return bench::Timing::kDefault;
  if (name == "wall" && on_cpu) return bench::Timing::kWall;
  if (name == "graph" && !on_cpu) return bench::Timing::kGraph;
  if (name == "events" && !on_cpu) return bench::Timing::kEvents;
  return invalid_argument("--timing is \"{}\"; allowed on this device: auto, {}", shown(name),
                          on_cpu ? "wall" : "graph, events");
}

// The kernels for sm_80 on whatever GPU there is.
constexpr const char* kCudaAsSm80 = "cuda:sm_80";

Result<DeviceInfo> find_device(const std::string& name, int32_t num_threads) {
  LD_RETURN_IF_ERROR(check_choice("--device", name, {"auto", "cpu", "cuda", kCudaAsSm80}));
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return invalid_argument("--threads is {}; allowed: 1 to {}, or 0 for all", num_threads,
                            kMaxThreads);
  }
  Result<DeviceInfo> device = detect_device(name == "cpu" ? DeviceType::kCpu : DeviceType::kCuda);
  if (name == "auto" && !device.ok()) {
    note_cpu(device.status());
    device = detect_device(DeviceType::kCpu);
  }
  if (!device.ok()) return name_device(name, device.status());
  if (num_threads > 0) device->num_threads = num_threads;
  if (name == kCudaAsSm80) {  // an RTX 4090's
    device->compute_capability = 89;
    device->shared_memory_bytes = 101376;
  }
  return device;
}

// Of the names of members: "ffd.delta".
constexpr std::string_view kWordCharacters = "abcdefghijklmnopqrstuvwxyz_.0123456789";

// A refusal of the library, in the words of the flags: every word that names a member.
Status in_flags(const Status& status) {
  static const std::map<std::string, std::string> kFlags = {
      {"batch", "--batch"},
      {"ffd.delta", "--delta"},
      {"ffd.margin_sigmas", "--margin-sigmas"},
      {"ffd.recent_tokens", "--recent-tokens"},
      {"ffd.sink_tokens", "--sink-tokens"},
      {"flush_bytes", "--flush-bytes"},
      {"format.key_dim", "--head-dim"},
      {"format.num_kv_heads", "--num-kv-heads"},
      {"format.page_size", "--page-size"},
      {"kept", "--kept"},
      {"key_dim", "--head-dim"},
      {"kv_len", "--kv-len"},
      {"max_batch", "--batch"},
      {"max_kv_len", "--kv-len"},
      {"max_query_len", "--query-len"},
      {"near_threshold", "--near-threshold"},
      {"num_kv_heads", "--num-kv-heads"},
      {"num_q_heads", "--num-q-heads"},
      {"page_size", "--page-size"},
      {"query_len", "--query-len"},
      {"recent_tokens", "--recent-tokens"},
      {"reps", "--reps"},
      {"sink_tokens", "--sink-tokens"}};
  const std::string& message = status.message();
  std::string text;
  for (size_t begin = 0; begin < message.size();) {
    const bool is_word = kWordCharacters.find(message[begin]) != std::string_view::npos;
    const size_t end = std::min(is_word ? message.find_first_not_of(kWordCharacters, begin)
                                        : message.find_first_of(kWordCharacters, begin),
                                message.size());
    const std::string part = message.substr(begin, end - begin);
    const auto found = kFlags.find(part);
    text += found == kFlags.end() ? part : found->second;
    begin = end;
  }
  return Status(status.code(), text);
}

// Exit code 1: rows that are wrong are printed, and are no result.
Status check_rows(const std::vector<bench::BenchRow>& rows) {
  int64_t num_invalid = 0;
  std::string first;
  for (const bench::BenchRow& row : rows) {
    if (row.valid()) continue;
    if (num_invalid++ == 0) {
      first = fmt::format("{} at kv_len {}: max_rel_err {:.2e}, allowed {:.0e}", row.kernel,
                          row.shape.kv_len, row.max_rel_err, row.max_rel_err_limit);
    }
  }
  if (num_invalid == 0) return {};
  return make_status(StatusCode::kInternal, "{} of {} rows above the error limit ({})", num_invalid,
                     rows.size(), first);
}

Status run_bench_attention(const BenchAttentionOptions& options) {
  std::vector<ShapeRequest> requests = {options.shape};
  if (!options.shapes_path.empty()) {
    LD_ASSIGN_OR_RETURN(requests, read_shapes_file(options.shapes_path, options.shape));
  }
  const auto takes_dump = [](const ShapeRequest& request) { return request.workload == "dump"; };
  if (std::none_of(requests.begin(), requests.end(), takes_dump)) {
    LD_RETURN_IF_ERROR(check_dump(options.shape));
  }
  std::vector<std::string> inputs = {options.shapes_path};
  for (const ShapeRequest& request : requests) inputs.push_back(request.dump);
  LD_ASSIGN_OR_RETURN(JsonOutput output, JsonOutput::open(options.json_path, inputs));
  std::vector<bench::ShapeSpec> shapes;
  LD_ASSIGN_OR_RETURN(const DeviceInfo device, find_device(options.device, options.num_threads));
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string context =
        options.shapes_path.empty()
            ? ""
            : fmt::format("--shapes {}: shape {}: ", options.shapes_path, i);
    LD_RETURN_IF_ERROR(in_context(context, expand(requests[i], shapes)));
  }
  bench::BenchOptions bench_options;
  LD_ASSIGN_OR_RETURN(bench_options.timing, parse_timing(options.timing, device.type));
  bench_options.num_reps = options.num_reps;
  bench_options.flush_bytes = options.flush_bytes;
  bench_options.progress = [](const std::string& line) { write_stderr(line + "\n"); };
  auto bench = bench::AttentionBench::create(std::move(shapes), device, bench_options);
  if (!bench.ok()) return in_flags(bench.status());
  LD_ASSIGN_OR_RETURN(const std::vector<bench::BenchRow> rows, bench->run());
  if (!output.is_stdout()) LD_RETURN_IF_ERROR(write_stdout(rows_to_table(rows, device)));
  LD_RETURN_IF_ERROR(output.write(rows_to_json(rows, device)));
  return check_rows(rows);
}

// "512M" as "536870912".
std::string count_of_bytes(const std::string& text) {
  std::string count = text;
  const size_t first_unit = std::min(text.find_first_not_of("0123456789"), text.size());
  bool is_good = first_unit > 0 && integer_problem(text.substr(0, first_unit), 64).empty();
  try {
    is_good = is_good && CLI::AsSizeValue(false)(count).empty();
  } catch (const CLI::ValidationError&) {
    is_good = false;
  }
  if (is_good && integer_problem(count, 64).empty()) return count;
  throw CLI::ValidationError(fmt::format(
      "the value is \"{}\"; allowed: 0 to {}, or with a unit: 512M, 2G", shown(text), INT64_MAX));
}

void add_shape_options(CLI::App& app, ShapeRequest& shape) {
  app.add_option("--op", shape.op,
                 "gqa, or mla (latent 576: --num-kv-heads and --head-dim have no effect)");
  add_list_option(app, "--method", shape.method, "dense, ffd");
  add_list_option(app, "--batch", shape.batch, "Sequences of a step");
  add_list_option(app, "--query-len", shape.query_len, "New tokens per sequence, 1 to 8");
  add_list_option(app, "--kv-len", shape.kv_len, "Tokens per sequence, the new ones included");
  app.add_option("--num-q-heads", shape.num_q_heads, "Query heads");
  app.add_option("--num-kv-heads", shape.num_kv_heads, "Key and value heads");
  app.add_option("--head-dim", shape.head_dim, "64, 80, 96, 128 or 256");
  app.add_option("--dtype", shape.dtype, "bf16, f16 or f32");
  app.add_option("--page-size", shape.page_size, "Tokens of a page; ffd: 64 or 128");
}

void add_workload_options(CLI::App& app, ShapeRequest& shape) {
  add_list_option(app, "--kept", shape.kept,
                  "Share of 16-token groups that hold a planted hit, 0 to 1");
  app.add_option(
      "--workload", shape.workload,
      "planted (hits anywhere), clustered (runs of hits, half of them in one kv head), or dump "
      "(a layer of --dump, repeated; it gives heads and head_dim)");
  app.add_option("--dump", shape.dump, "Keys, values and queries written by dump-qkv (f16 or f32)")
      ->type_name("FILE");
  app.add_option("--layer", shape.layer, "Layer of the dump");
  app.add_option("--near-threshold", shape.near_threshold,
                 "Share of tokens planted just below the threshold, 0 to 1");
  app.add_option("--delta", shape.delta, "FFD: nats below the pseudo-max; inf keeps everything");
  add_list_option(app, "--margin-sigmas", shape.margin_sigmas,
                  "FFD: margin in deviations of the noise");
  app.add_flag("--certified", shape.certified, "FFD: worst-case margin, nothing is missed");
  app.add_option("--sink-tokens", shape.sink_tokens, "FFD: first tokens, always attended");
  app.add_option("--recent-tokens", shape.recent_tokens, "FFD: last tokens, always attended");
  app.add_option("--seed", shape.seed, "Seed of the inputs");
}

}  // namespace

void add_bench_attention(CLI::App& bench, Status& outcome) {
  CLI::App* app = bench.add_subcommand("attention", "Time decode attention against its read floor");
  app->option_defaults()->always_capture_default();
  auto options = std::make_shared<BenchAttentionOptions>();
  add_shape_options(*app, options->shape);
  add_workload_options(*app, options->shape);
  app->add_option("--shapes", options->shapes_path,
                  "JSON array of shapes, keys named like the options (num_q_heads, ...); an option "
                  "is the default of what a shape leaves out")
      ->type_name("FILE");
  app->add_option("--device", options->device,
                  "auto, cpu, cuda, or cuda:sm_80 (the kernels of other GPUs than Hopper)");
  app->add_option("-t,--threads", options->num_threads, "CPU threads, 0: all");
  app->add_option("--timing", options->timing,
                  "auto, wall (CPU), graph or events (CUDA); auto: wall or graph");
  app->add_option("--reps", options->num_reps, "Samples per row; default 7, 20 for events");
  app->add_option("--flush-bytes", options->flush_bytes,
                  "Bytes read to flush the caches before each call, e.g. 512M; default 8 x the "
                  "last-level cache (CUDA: 384M); less (CUDA: than 256M) is reported as "
                  "cold-partial, 0 as warm")
      ->type_name("BYTES")
      ->transform(count_of_bytes);
  add_json_flag(*app, options->json_path);
  app->footer(kFooter);
  app->callback([options, &outcome] { outcome = run_bench_attention(*options); });
}

}  // namespace longdecode::tool
