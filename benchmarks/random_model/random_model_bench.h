// Tokens per second of decode steps of a model with random weights over a filled cache: throughput
// only. No CUDA types: the command includes it in every build.
#ifndef LONGDECODE_BENCHMARKS_RANDOM_MODEL_RANDOM_MODEL_BENCH_H_
#define LONGDECODE_BENCHMARKS_RANDOM_MODEL_RANDOM_MODEL_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longdecode/attention.h"
#include "longdecode/status.h"
#include "runner/model/session.h"

namespace longdecode::gpu_bench {

// Bytes per second that bounds are made with.
inline constexpr double kBoundBandwidth = 4.6e12;

struct RandomModelSpec {
  std::string model;  // of random_model_names
  std::vector<int64_t> depths;
  std::vector<Method> methods;
  std::vector<int32_t> batches = {1};
  int64_t num_steps = 256;
  int64_t num_reps = 3;
  FfdOptions ffd;
  std::vector<runner::GraphMode> graphs = {runner::GraphMode::kAnyLength};
  DeviceInfo device;
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

// Microseconds of one step: its kinds of work replayed alone, and what the whole step takes beyond
// their sum (below 0 where they overlap).
struct StepBreakdown {
  double weights_us = 0.0;
  double attention_us = 0.0;
  double other_us = 0.0;
  double gaps_us = 0.0;
};

struct RandomModelRow {
  std::string model;
  Method method = Method::kDense;
  runner::GraphMode graph = runner::GraphMode::kAnyLength;
  std::string kernel;
  int32_t batch = 1;
  int64_t depth = 0;
  int64_t num_steps = 0;
  std::vector<double> tok_s;  // [reps], all sequences of the batch together
  double kept_fraction = 1.0;
  double weight_bytes = 0.0;  // that a step reads
  double kv_bytes = 0.0;      // that a step reads, as the kernels report them
  StepBreakdown breakdown;
  runner::GraphStats graph_stats;  // of the timed repetitions

  double bound_tok_s() const { return batch * kBoundBandwidth / (weight_bytes + kv_bytes); }
};

std::vector<std::string> random_model_names();

// The share of tokens that a layer keeps at a depth: 20% in layer 0, else 10%, 1% and 0.5% at 16K,
// 128K and 256K, and on a power law between and beyond them.
double kept_share(int32_t layer_idx, int64_t depth);

// A row for every depth, batch, method and graph mode, in that order. Rows with room for them are
// measured before the error of one without is returned.
Status run_random_model_bench(const RandomModelSpec& spec, std::vector<RandomModelRow>* rows);

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_RANDOM_MODEL_RANDOM_MODEL_BENCH_H_
