// `longdecode bench model`: what its two kinds of runs share.
#ifndef LONGDECODE_TOOLS_BENCH_MODEL_H_
#define LONGDECODE_TOOLS_BENCH_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "longdecode/status.h"
#include "session_options.h"

namespace longdecode::tool {

struct BenchModelOptions {
  std::string model_path;
  std::string random_model;  // --random-weights, in place of a file
  std::string text_path;
  int64_t prompt_tokens = 512;
  int64_t decode_tokens = 64;
  std::vector<int64_t> depths = {0};
  std::vector<int32_t> batches = {1};
  std::vector<std::string> methods = {"dense", "ffd"};
  int64_t num_reps = 3;
  SessionFlags session;
  bool progress = false;
  std::string json_path;

  int64_t context_len() const {
    return *std::max_element(depths.begin(), depths.end()) + std::max(prompt_tokens, decode_tokens);
  }
};

// Decode steps of a model with random weights over a planted cache, on CUDA.
Status check_bench_random_model(const BenchModelOptions& options);
Status run_bench_random_model(const BenchModelOptions& options);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_BENCH_MODEL_H_
