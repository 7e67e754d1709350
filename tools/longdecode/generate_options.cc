#include "generate_options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::tool {
namespace {

constexpr int32_t kMaxThreads = 1024;
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxSeed = std::numeric_limits<uint32_t>::max();

Status check_choice(const char* flag, const std::string& value,
                    const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return {};
  return invalid_argument("{} is \"{}\"; allowed: {}", flag, value, fmt::join(allowed, ", "));
}

Status check_within(const char* flag, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return {};
  return invalid_argument("{} is {}; it must be within {} and {}", flag, value, min, max);
}

Status check_non_negative(const char* flag, float value, bool infinity_allowed) {
  if (value >= 0.0f && (infinity_allowed || !std::isinf(value))) return {};
  return invalid_argument("{} is {}; it must be >= 0{}", flag, value,
                          infinity_allowed ? " (inf keeps every token)" : " and finite");
}

void add_sampler_options(CLI::App& command, GenerateOptions& options) {
  command.add_option("-s,--seed", options.seed, "Seed of the sampler; -1: a random one")
      ->envname("LONGDECODE_SEED")
      ->group("Sampling");
  command.add_option("--temp", options.sampler.temperature, "Temperature; 0: greedy")
      ->envname("LONGDECODE_TEMP")
      ->group("Sampling");
  command.add_option("--top-k", options.sampler.top_k, "Keep the K likeliest tokens; 0: all")
      ->envname("LONGDECODE_TOP_K")
      ->group("Sampling");
  command
      .add_option("--top-p", options.sampler.top_p,
                  "Keep the fewest tokens whose probabilities reach P, 0 to 1")
      ->envname("LONGDECODE_TOP_P")
      ->group("Sampling");
  command.add_flag("--ignore-eos", options.ignore_eos, "Never choose a token that ends the text")
      ->group("Sampling");
}

void add_attention_options(CLI::App& command, GenerateOptions& options) {
  const char* kGroup = "Attention";
  command
      .add_option("--method", options.method,
                  "dense: attend every token; ffd: scan 2-bit keys, attend what may matter")
      ->envname("LONGDECODE_METHOD")
      ->group(kGroup);
  command
      .add_option("--delta", options.ffd.delta,
                  "ffd: keep tokens within this many nats of the pseudo-max; inf: all")
      ->envname("LONGDECODE_DELTA")
      ->group(kGroup);
  command
      .add_option("--margin-sigmas", options.ffd.margin_sigmas,
                  "ffd: widen delta by this many deviations of the 2-bit noise")
      ->envname("LONGDECODE_MARGIN_SIGMAS")
      ->group(kGroup);
  command
      .add_flag("--certified", options.ffd.certified,
                "ffd: widen delta by the worst case, so that no token within it is missed")
      ->envname("LONGDECODE_CERTIFIED")
      ->group(kGroup);
  command
      .add_option("--sink-tokens", options.ffd.sink_tokens,
                  "ffd: first tokens, always attended exactly")
      ->envname("LONGDECODE_SINK_TOKENS")
      ->group(kGroup);
  command
      .add_option("--recent-tokens", options.ffd.recent_tokens,
                  "ffd: last tokens, always attended exactly")
      ->envname("LONGDECODE_RECENT_TOKENS")
      ->group(kGroup);
  command
      .add_option("--dense-layers", options.dense_layers,
                  "ffd: layers that attend every token, e.g. 0,1")
      ->delimiter(',')
      ->type_name("LAYERS")
      ->default_str("")
      ->envname("LONGDECODE_DENSE_LAYERS")
      ->group(kGroup);
  command.add_option("--kv-type", options.kv_type, "Type of keys and values: f16, bf16 or f32")
      ->envname("LONGDECODE_KV_TYPE")
      ->group(kGroup);
}

// Flags that say something about FFD while the method is another.
std::vector<std::string> find_unused_flags(const CLI::App& command, const std::string& method) {
  std::vector<std::string> unused;
  if (method == "ffd") return unused;
  for (const char* flag : {"--delta", "--margin-sigmas", "--certified", "--sink-tokens",
                           "--recent-tokens", "--dense-layers"}) {
    if (command.count(flag) > 0) unused.push_back(flag);
  }
  return unused;
}

}  // namespace

void add_prompt_options(CLI::App& command, PromptOptions& options) {
  command.add_option("-m,--model", options.model_path, "Model, a GGUF file (required)")
      ->type_name("FILE")
      ->envname("LONGDECODE_MODEL");
  command.add_option("-p,--prompt", options.text, "Prompt")->type_name("TEXT");
  command.add_option("-f,--file", options.file_path, "File with the prompt, UTF-8; -: stdin")
      ->type_name("FILE");
  command
      .add_flag("--chat,!--no-chat", options.chat,
                "Wrap the prompt in the model's chat template; else it is continued as it is")
      ->envname("LONGDECODE_CHAT");
  command.add_flag("--special", options.parse_special,
                   "Control tokens written in the prompt (<|im_end|>) become tokens");
}

void add_generate_options(CLI::App& command, GenerateOptions& options) {
  command.option_defaults()->always_capture_default();
  add_prompt_options(command, options.prompt);
  command.add_option("-n,--predict", options.num_predict, "Most tokens to generate")
      ->envname("LONGDECODE_N_PREDICT");
  command
      .add_option("-c,--ctx-size", options.context_len,
                  "Tokens of context; 0: what prompt and -n need, at most the model's")
      ->envname("LONGDECODE_CTX_SIZE");
  command
      .add_option("-t,--threads", options.num_threads, "Threads (default: the CPUs of the process)")
      ->envname("LONGDECODE_THREADS")
      ->default_str("");
  command.add_option("--device", options.device, "auto or cpu")->envname("LONGDECODE_DEVICE");
  add_sampler_options(command, options);
  add_attention_options(command, options);
  command
      .add_option("--json", options.json_path,
                  "Write the result as JSON to FILE, or to stdout alone for -")
      ->type_name("FILE");
  command.add_flag("--progress", options.progress,
                   "Show progress on stderr even when it is no terminal");
}

Status check_prompt_options(const CLI::App& command, PromptOptions& options) {
  options.has_text = command.count("--prompt") > 0;
  const bool has_file = command.count("--file") > 0;
  if (options.model_path.empty()) {
    return invalid_argument("no model: give -m FILE (a GGUF file) or set LONGDECODE_MODEL");
  }
  if (options.has_text && has_file) return invalid_argument("-p and -f exclude each other");
  if (!options.has_text && !has_file) {
    return invalid_argument("no prompt: give -p TEXT or -f FILE");
  }
  return {};
}

Status check_generate_options(const CLI::App& command, GenerateOptions& options) {
  LD_RETURN_IF_ERROR(check_prompt_options(command, options.prompt));
  LD_RETURN_IF_ERROR(check_within("-n", options.num_predict, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_within("-c", options.context_len, 0, kMaxCount));
  if (command.count("--threads") > 0) {
    LD_RETURN_IF_ERROR(check_within("-t", options.num_threads, 1, kMaxThreads));
  }
  LD_RETURN_IF_ERROR(check_within("-s", options.seed, -1, kMaxSeed));
  LD_RETURN_IF_ERROR(check_non_negative("--temp", options.sampler.temperature, false));
  LD_RETURN_IF_ERROR(check_within("--top-k", options.sampler.top_k, 0, kMaxCount));
  if (!(options.sampler.top_p >= 0.0f && options.sampler.top_p <= 1.0f)) {
    return invalid_argument("--top-p is {}; it must be within 0 and 1", options.sampler.top_p);
  }
  LD_RETURN_IF_ERROR(check_choice("--method", options.method, {"dense", "ffd"}));
  LD_RETURN_IF_ERROR(check_non_negative("--delta", options.ffd.delta, true));
  LD_RETURN_IF_ERROR(check_non_negative("--margin-sigmas", options.ffd.margin_sigmas, false));
  LD_RETURN_IF_ERROR(check_within("--sink-tokens", options.ffd.sink_tokens, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_within("--recent-tokens", options.ffd.recent_tokens, 0, kMaxCount));
  for (int32_t layer : options.dense_layers) {
    LD_RETURN_IF_ERROR(check_within("--dense-layers", layer, 0, kMaxCount));
  }
  LD_RETURN_IF_ERROR(check_choice("--kv-type", options.kv_type, {"f16", "bf16", "f32"}));
  LD_RETURN_IF_ERROR(check_choice("--device", options.device, {"auto", "cpu"}));
  options.unused_flags = find_unused_flags(command, options.method);
  return {};
}

}  // namespace longdecode::tool
