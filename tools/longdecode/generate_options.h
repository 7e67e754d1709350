// Flags of `longdecode generate`, their environment twins and their checks.
#ifndef LONGDECODE_TOOLS_GENERATE_OPTIONS_H_
#define LONGDECODE_TOOLS_GENERATE_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "longdecode/status.h"
#include "runner/model/session.h"
#include "runner/sampler/sampler.h"
#include "session_options.h"

namespace longdecode::tool {

// What `generate` and `tokenize` share. Prompts are all -p or all -f.
struct PromptOptions {
  std::string model_path;
  std::vector<std::string> texts;       // -p
  std::vector<std::string> file_paths;  // -f; "-" is stdin
  bool chat = false;                    // wrap the prompt in the model's chat template
  bool parse_special = false;           // control tokens written in the prompt become tokens
};

inline size_t num_prompts(const PromptOptions& options) {
  return options.texts.size() + options.file_paths.size();
}
// The model and the files of prompts.
std::vector<std::string> input_paths(const PromptOptions& options);

struct GenerateOptions {
  PromptOptions prompt;
  int32_t parallel = runner::kMaxCudaBatch;  // prompts decoded together on CUDA
  int64_t num_predict = 128;
  int64_t context_len = 0;  // 0: prompt + num_predict, at most the model's
  int64_t seed = -1;        // -1: a random one
  runner::SamplerOptions sampler;
  std::string method = "dense";
  // Method ffd with room for fewer tokens than this runs dense over plain keys, which is faster
  // there: 30 layers, 3 kv heads of 64 cross between 4000 and 5000 tokens.
  int64_t ffd_min_len = 4096;
  SessionFlags session;
  bool ignore_eos = false;
  bool progress = false;
  bool verbose = false;
  bool interactive = false;
  std::string prompt_cache_path;
  std::string json_path;
  std::vector<std::string> unused_flags;  // given, but without effect on this method
};

// What decodes a session with room for context_len tokens: options.method, or dense where that is
// ffd and the session shorter than ffd_min_len. A prompt cache keeps the method that it was asked
// for, because it holds that method's keys.
std::string decode_method(const GenerateOptions& options, int64_t context_len);

// Of --seed: itself, or a random one for -1.
uint64_t choose_seed(int64_t seed);
// Of one of several prompts: what -s takes for a run of this prompt alone.
uint64_t prompt_seed(uint64_t seed, size_t prompt_idx);

// several: -p and -f may be given more than once.
void add_prompt_options(CLI::App& command, PromptOptions& options, bool several);
void add_generate_options(CLI::App& command, GenerateOptions& options);

// After parsing, before any work: every value is in range. The message names the flag, its value
// and what is allowed. Fills unused_flags.
Status check_prompt_options(const CLI::App& command, PromptOptions& options);
Status check_generate_options(const CLI::App& command, GenerateOptions& options);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_GENERATE_OPTIONS_H_
