#include "session_options.h"

#include <algorithm>
#include <cstdlib>

#include "base/errors.h"
#include "base/status_macros.h"
#include "list_option.h"
#include "option_checks.h"

namespace longdecode::tool {
namespace {

DType kv_dtype(const std::string& name) {
  if (name == "f32") return DType::kF32;
  return name == "bf16" ? DType::kBF16 : DType::kF16;
}

// Enough tokens for the products to be bound by arithmetic.
constexpr int32_t kCudaPrefillChunk = 2048;

void add_ffd_flags(CLI::App& command, SessionFlags& flags) {
  const char* kGroup = "Attention";
  command
      .add_option("--delta", flags.ffd.delta,
                  "ffd: keep tokens within this many nats of the pseudo-max; inf: all")
      ->envname("LONGDECODE_DELTA")
      ->group(kGroup);
  add_list_option(command, "--layer-delta", flags.layer_delta_texts,
                  "ffd: delta of single layers, e.g. 0=inf,1=7; inf: attend every token, no scan")
      ->type_name("LAYER=DELTA")
      ->default_str("")
      ->envname("LONGDECODE_LAYER_DELTA")
      ->group(kGroup);
  command
      .add_option("--margin-sigmas", flags.ffd.margin_sigmas,
                  "ffd: widen delta by this many deviations of the 2-bit noise")
      ->envname("LONGDECODE_MARGIN_SIGMAS")
      ->group(kGroup);
  command
      .add_flag("--certified", flags.ffd.certified,
                "ffd: widen delta by the worst case, so that no token within it is missed")
      ->envname("LONGDECODE_CERTIFIED")
      ->group(kGroup);
  command
      .add_option("--sink-tokens", flags.ffd.sink_tokens,
                  "ffd: first tokens, always attended exactly")
      ->envname("LONGDECODE_SINK_TOKENS")
      ->group(kGroup);
  command
      .add_option("--recent-tokens", flags.ffd.recent_tokens,
                  "ffd: last tokens, always attended exactly")
      ->envname("LONGDECODE_RECENT_TOKENS")
      ->group(kGroup);
  add_list_option(command, "--dense-layers", flags.dense_layers,
                  "ffd: layers that attend every token, e.g. 0,1")
      ->type_name("LAYERS")
      ->default_str("")
      ->envname("LONGDECODE_DENSE_LAYERS")
      ->group(kGroup);
}

// "3=7.5": a layer and its delta.
Result<runner::LayerDelta> parse_layer_delta(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string layer = text.substr(0, equals);
  const std::string delta = equals == std::string::npos ? "" : text.substr(equals + 1);
  char* layer_end = nullptr;
  char* delta_end = nullptr;
  const long long layer_idx = std::strtoll(layer.c_str(), &layer_end, 10);
  const float value = std::strtof(delta.c_str(), &delta_end);
  if (layer.empty() || delta.empty() || *layer_end != '\0' || *delta_end != '\0') {
    return invalid_argument("--layer-delta has \"{}\"; allowed: LAYER=DELTA, e.g. 0=inf,1=7",
                            shown(text));
  }
  for (const std::string& problem : {integer_problem(layer, 64), float_problem(delta)}) {
    if (!problem.empty())
      return invalid_argument("--layer-delta has \"{}\": {}", shown(text), problem);
  }
  LD_RETURN_IF_ERROR(check_within("the layer of --layer-delta", layer_idx, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_non_negative("the delta of --layer-delta", value, true));
  return runner::LayerDelta{static_cast<int32_t>(layer_idx), value};
}

Status check_layer_deltas(SessionFlags& flags) {
  for (const std::string& text : flags.layer_delta_texts) {
    LD_ASSIGN_OR_RETURN(const runner::LayerDelta entry, parse_layer_delta(text));
    const auto same = [&](const runner::LayerDelta& other) {
      return other.layer_idx == entry.layer_idx;
    };
    if (std::any_of(flags.layer_deltas.begin(), flags.layer_deltas.end(), same)) {
      return invalid_argument("--layer-delta names layer {} twice", entry.layer_idx);
    }
    const auto& dense = flags.dense_layers;
    if (std::find(dense.begin(), dense.end(), entry.layer_idx) != dense.end()) {
      return invalid_argument("layer {} is in --layer-delta and in --dense-layers",
                              entry.layer_idx);
    }
    flags.layer_deltas.push_back(entry);
  }
  return {};
}

}  // namespace

void add_thread_flag(CLI::App& command, int32_t& num_threads) {
  command.add_option("-t,--threads", num_threads, "Threads (default: the CPUs of the process)")
      ->envname("LONGDECODE_THREADS")
      ->default_str("");
}

Status check_thread_flag(const CLI::App& command, int32_t num_threads) {
  if (command.count("--threads") == 0) return {};
  return check_within("-t", num_threads, 1, kMaxThreads);
}

void add_session_flags(CLI::App& command, SessionFlags& flags) {
  add_thread_flag(command, flags.num_threads);
  command.add_option("--device", flags.device, "cpu, cuda, or auto: cuda where it can run this")
      ->envname("LONGDECODE_DEVICE");
  add_ffd_flags(command, flags);
  add_list_option(command, "--graph", flags.graphs,
                  "cuda: decode steps as CUDA Graphs: any-length (one graph), block (captured anew "
                  "every 256 tokens) or off")
      ->envname("LONGDECODE_GRAPH");
  command
      .add_option("--kv-type", flags.kv_type,
                  "Type of keys and values: f16, bf16, f32 or auto (cpu: f16, cuda: bf16, the only "
                  "one there)")
      ->envname("LONGDECODE_KV_TYPE")
      ->group("Attention");
}

Status check_session_flags(const CLI::App& command, SessionFlags& flags) {
  LD_RETURN_IF_ERROR(check_thread_flag(command, flags.num_threads));
  LD_RETURN_IF_ERROR(check_non_negative("--delta", flags.ffd.delta, true));
  LD_RETURN_IF_ERROR(check_non_negative("--margin-sigmas", flags.ffd.margin_sigmas, false));
  LD_RETURN_IF_ERROR(check_within("--sink-tokens", flags.ffd.sink_tokens, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_within("--recent-tokens", flags.ffd.recent_tokens, 0, kMaxCount));
  for (int32_t layer : flags.dense_layers) {
    LD_RETURN_IF_ERROR(check_within("--dense-layers", layer, 0, kMaxCount));
  }
  LD_RETURN_IF_ERROR(check_layer_deltas(flags));
  LD_RETURN_IF_ERROR(check_choice("--kv-type", flags.kv_type, {"auto", "f16", "bf16", "f32"}));
  for (const std::string& graph : flags.graphs) {
    LD_RETURN_IF_ERROR(check_choice("--graph", graph, {"any-length", "block", "off"}));
  }
  LD_RETURN_IF_ERROR(check_choice("--device", flags.device, {"auto", "cpu", "cuda"}));
  flags.cuda_flags = given_flags(command, {"--graph", "--parallel"});
  if (flags.device != "cuda") return {};
  LD_RETURN_IF_ERROR(check_cuda_kv_type(flags));
  return name_device(flags.device, detect_device(DeviceType::kCuda).status());
}

Status name_device(const std::string& name, const Status& status) {
  return in_context(fmt::format("--device is \"{}\": ", name), status);
}

Status check_layers(const SessionFlags& flags, const runner::ModelConfig& config) {
  const auto check = [&](const char* flag, int32_t layer) {
    if (layer < config.num_layers) return Status();
    return invalid_argument("{} has {}; the model has the layers 0 to {}", flag, layer,
                            config.num_layers - 1);
  };
  for (int32_t layer : flags.dense_layers) LD_RETURN_IF_ERROR(check("--dense-layers", layer));
  for (const auto& entry : flags.layer_deltas) {
    LD_RETURN_IF_ERROR(check("--layer-delta", entry.layer_idx));
  }
  return {};
}

std::vector<std::string> given_flags(const CLI::App& command,
                                     std::initializer_list<const char*> flags) {
  std::vector<std::string> given;
  for (const char* flag : flags) {
    const CLI::Option* option = command.get_option_no_throw(flag);
    if (option != nullptr && option->count() > 0) given.push_back(flag);
  }
  return given;
}

std::vector<std::string> given_ffd_flags(const CLI::App& command) {
  return given_flags(command,
                     {"--delta", "--layer-delta", "--margin-sigmas", "--certified", "--sink-tokens",
                      "--recent-tokens", "--dense-layers", "--ffd-min-len"});
}

Result<runner::SessionOptions> session_options(const SessionFlags& flags, Method method,
                                               int64_t context_len) {
  runner::SessionOptions options;
  options.method = method;
  options.ffd = flags.ffd;
  options.dense_layers = flags.dense_layers;
  options.layer_deltas = flags.layer_deltas;
  options.context_len = context_len;
  options.kv_dtype = kv_dtype(flags.kv_type);
  LD_ASSIGN_OR_RETURN(options.device, detect_device(DeviceType::kCpu));
  if (flags.num_threads > 0) options.device.num_threads = flags.num_threads;
  return options;
}

void put_on_cuda(const SessionFlags& flags, const DeviceInfo& device,
                 runner::SessionOptions& options) {
  options.device = device;
  options.prefill_chunk = kCudaPrefillChunk;
  options.graph = parse_graph(flags.graphs[0]);
  if (flags.kv_type == "auto") options.kv_dtype = DType::kBF16;
}

Status check_cuda_kv_type(const SessionFlags& flags) {
  if (flags.kv_type == "auto" || flags.kv_type == "bf16") return {};
  return unsupported("--kv-type is \"{}\"; allowed on cuda: auto, bf16", flags.kv_type);
}

Status check_one_graph(const SessionFlags& flags) {
  if (flags.graphs.size() == 1) return {};
  return invalid_argument("--graph is {}; one of any-length, block, off is allowed",
                          fmt::join(flags.graphs, ","));
}

runner::GraphMode parse_graph(const std::string& name) {
  if (name == "off") return runner::GraphMode::kOff;
  return name == "block" ? runner::GraphMode::kBlock : runner::GraphMode::kAnyLength;
}

const char* device_name(DeviceType type) { return type == DeviceType::kCuda ? "cuda" : "cpu"; }

Method parse_method(const std::string& name) {
  return name == "ffd" ? Method::kFfd : Method::kDense;
}

}  // namespace longdecode::tool
