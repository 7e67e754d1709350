#include "generate_options.h"

#include <algorithm>
#include <limits>
#include <random>

#include "base/errors.h"
#include "base/status_macros.h"
#include "model_file.h"
#include "option_checks.h"
#include "output_flags.h"

namespace longdecode::tool {
namespace {

constexpr int64_t kMaxSeed = std::numeric_limits<uint32_t>::max();

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

}  // namespace

void add_prompt_options(CLI::App& command, PromptOptions& options, bool several) {
  command.add_option("-m,--model", options.model_path, "Model, a GGUF file (required)")
      ->type_name("FILE")
      ->envname("LONGDECODE_MODEL");
  const auto add = [&](const char* name, const char* type, std::vector<std::string>& values,
                       std::string text) {
    if (several) text += "; may be given several times";
    CLI::Option* option = command.add_option(name, values, text)->allow_extra_args(false);
    option->type_name(type)->default_str("");
    if (!several) option->expected(1);
  };
  add("-p,--prompt", "TEXT", options.texts, "Prompt");
  add("-f,--file", "FILE", options.file_paths, "File with the prompt, UTF-8; -: stdin");
  command
      .add_flag("--chat,!--no-chat", options.chat,
                "Wrap the prompt in the model's chat template; else it is continued as it is")
      ->envname("LONGDECODE_CHAT");
  command.add_flag("--special", options.parse_special,
                   "Control tokens written in the prompt (<|im_end|>) become tokens");
}

void add_generate_options(CLI::App& command, GenerateOptions& options) {
  command.option_defaults()->always_capture_default();
  add_prompt_options(command, options.prompt, true);
  command
      .add_option("--parallel", options.parallel,
                  "Several prompts: so many are decoded together on cuda (more memory, more tokens "
                  "per second); cpu: one after the other")
      ->envname("LONGDECODE_PARALLEL");
  command.add_option("-n,--predict", options.num_predict, "Most tokens to generate")
      ->envname("LONGDECODE_N_PREDICT");
  command
      .add_option("-c,--ctx-size", options.context_len,
                  "Tokens of context; 0: what prompt and -n need, at most the model's")
      ->envname("LONGDECODE_CTX_SIZE");
  add_sampler_options(command, options);
  command
      .add_option("--method", options.method,
                  "dense: attend every token; ffd: scan 2-bit keys, attend what may matter")
      ->envname("LONGDECODE_METHOD")
      ->group("Attention");
  add_session_flags(command, options.session);
  command
      .add_option("--ffd-min-len", options.ffd_min_len,
                  "ffd: be dense where prompt and -n (or -c) are fewer tokens than this, as that "
                  "is faster; not with --prompt-cache; 0: never")
      ->envname("LONGDECODE_FFD_MIN_LEN")
      ->group("Attention");
  add_json_flag(command, options.json_path);
  command
      .add_option("--prompt-cache", options.prompt_cache_path,
                  "Keep the KV cache in FILE: a later run whose prompt starts with the cached one "
                  "prefills only the rest; refused for another model, --method or --kv-type")
      ->type_name("FILE")
      ->envname("LONGDECODE_PROMPT_CACHE");
  command.add_flag("-i,--interactive", options.interactive,
                   "Chat: every line of stdin is a message, after that of -p or -f if given; "
                   "Ctrl-D ends, Ctrl-C stops an answer; -c is the model's unless given");
  command.add_flag("--verbose", options.verbose, "Show where the time went, on stderr");
  add_progress_flag(command, options.progress);
}

std::vector<std::string> input_paths(const PromptOptions& options) {
  std::vector<std::string> paths = {options.model_path};
  paths.insert(paths.end(), options.file_paths.begin(), options.file_paths.end());
  return paths;
}

std::string decode_method(const GenerateOptions& options, int64_t context_len) {
  const bool is_short = context_len < options.ffd_min_len && options.prompt_cache_path.empty();
  return is_short ? "dense" : options.method;
}

uint64_t choose_seed(int64_t seed) {
  return seed >= 0 ? static_cast<uint64_t>(seed) : uint64_t{std::random_device()()};
}

uint64_t prompt_seed(uint64_t seed, size_t prompt_idx) {
  return (seed + prompt_idx) & static_cast<uint64_t>(kMaxSeed);
}

Status check_prompt_options(const CLI::App& command, PromptOptions& options) {
  LD_RETURN_IF_ERROR(check_model_path(options.model_path));
  if (!options.texts.empty() && !options.file_paths.empty()) {
    return invalid_argument("-p and -f exclude each other");
  }
  if (std::count(options.file_paths.begin(), options.file_paths.end(), "-") > 1) {
    return invalid_argument("-f - is given twice; stdin has one prompt");
  }
  const auto* interactive = command.get_option_no_throw("--interactive");
  const bool waits = interactive != nullptr && interactive->count() > 0;
  if (num_prompts(options) == 0 && !waits) {
    return invalid_argument("no prompt: give -p TEXT or -f FILE");
  }
  return {};
}

namespace {

Status check_interactive(const GenerateOptions& options) {
  if (!options.interactive) return {};
  if (num_prompts(options.prompt) > 1) {
    return invalid_argument("{} prompts; -i allows one -p or -f", num_prompts(options.prompt));
  }
  if (!options.prompt.file_paths.empty() && options.prompt.file_paths[0] == "-") {
    return invalid_argument("-i and -f - exclude each other: both read stdin");
  }
  if (!options.json_path.empty()) return invalid_argument("-i and --json exclude each other");
  if (!options.prompt_cache_path.empty()) {
    return invalid_argument("-i and --prompt-cache exclude each other");
  }
  if (options.num_predict == 0) return invalid_argument("-n is 0; -i needs 1 or more");
  return {};
}

Status check_batch(const GenerateOptions& options) {
  LD_RETURN_IF_ERROR(check_within("--parallel", options.parallel, 1, runner::kMaxCudaBatch));
  const size_t count = num_prompts(options.prompt);
  if (count < 2) return {};
  if (!options.prompt_cache_path.empty()) {
    return invalid_argument("{} prompts; --prompt-cache allows one", count);
  }
  if (options.num_predict == 0) {
    return invalid_argument("-n is 0; several prompts need 1 or more");
  }
  return {};
}

}  // namespace

Status check_generate_options(const CLI::App& command, GenerateOptions& options) {
  LD_RETURN_IF_ERROR(check_prompt_options(command, options.prompt));
  LD_RETURN_IF_ERROR(check_interactive(options));
  LD_RETURN_IF_ERROR(check_batch(options));
  LD_RETURN_IF_ERROR(check_within("-n", options.num_predict, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_within("-c", options.context_len, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_within("-s", options.seed, -1, kMaxSeed));
  LD_RETURN_IF_ERROR(check_non_negative("--temp", options.sampler.temperature, false));
  LD_RETURN_IF_ERROR(check_within("--top-k", options.sampler.top_k, 0, kMaxCount));
  if (!(options.sampler.top_p >= 0.0f && options.sampler.top_p <= 1.0f)) {
    return invalid_argument("--top-p is {}; it must be within 0 and 1", options.sampler.top_p);
  }
  LD_RETURN_IF_ERROR(check_choice("--method", options.method, {"dense", "ffd"}));
  LD_RETURN_IF_ERROR(check_one_graph(options.session));
  LD_RETURN_IF_ERROR(check_within("--ffd-min-len", options.ffd_min_len, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_session_flags(command, options.session));
  if (options.method != "ffd") options.unused_flags = given_ffd_flags(command);
  return {};
}

}  // namespace longdecode::tool
