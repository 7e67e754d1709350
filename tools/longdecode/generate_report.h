// What a `generate` run gives: the JSON object and the table on stderr.
#ifndef LONGDECODE_TOOLS_GENERATE_REPORT_H_
#define LONGDECODE_TOOLS_GENERATE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runner/model/session.h"
#include "runner/sampler/sampler.h"
#include "session_options.h"

namespace longdecode::tool {

struct GenerateResult {
  std::string model_path;
  std::string model_name;
  std::string method;
  std::string device;  // "cpu" or "cuda"
  std::string kernel;
  std::string kv_type;
  SessionFlags session;
  runner::SamplerOptions sampler;
  uint64_t seed = 0;
  int32_t num_threads = 0;
  int64_t context_len = 0;
  std::string decode_method;  // "dense" where a session is too short for ffd
  int64_t ffd_min_len = 0;

  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;       // of the prompt, restored from a prompt cache
  std::vector<int32_t> token_ids;  // generated, without the token that ended the text
  std::string text;
  std::string stop_reason;  // "eos", "length" (-n) or "context"

  double load_s = 0.0;
  double tokenize_s = 0.0;  // the prompt
  double cache_s = 0.0;     // reading and writing the prompt cache
  double prefill_s = 0.0;   // of prompt_tokens - cached_tokens
  double decode_s = 0.0;    // all decode steps, sampling included
  double sampling_s = 0.0;
  int64_t decode_steps = 0;  // the first token comes from the prefill
  int64_t peak_rss_bytes = 0;
  runner::SessionStats stats;
};

// Of one of several prompts.
struct PromptResult {
  std::string file;  // of -f
  uint64_t seed = 0;
  int64_t prompt_tokens = 0;
  std::vector<int32_t> token_ids;  // as in GenerateResult
  std::string text;
  std::string stop_reason;
};

// Several prompts: `run` has their sums and what they share; its text and token_ids are empty.
struct BatchResult {
  GenerateResult run;
  int32_t parallel = 1;  // prompts decoded together at most
  double total_s = 0.0;  // prefill, decode, printing
  std::vector<PromptResult> prompts;
};

// The sums over the prompts, and the times of run.stats.
void finish(BatchResult& result);

// Highest resident memory of this process so far, mapped weights included.
int64_t peak_rss_bytes();

// Rates are null where nothing was measured (no decode step).
std::string report_json(const GenerateResult& result);
std::string report_json(const BatchResult& result);

// A few lines for people.
std::string report_table(const GenerateResult& result);
std::string report_table(const BatchResult& result);

// Where the time went, line by line.
std::string timing_table(const GenerateResult& result);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_GENERATE_REPORT_H_
