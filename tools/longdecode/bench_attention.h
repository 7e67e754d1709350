// `longdecode bench attention`: what was asked for, as plain values of the command line or of a
// shapes file, and the rows in print.
#ifndef LONGDECODE_TOOLS_BENCH_ATTENTION_H_
#define LONGDECODE_TOOLS_BENCH_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/attention_bench.h"
#include "longdecode/status.h"

namespace longdecode::tool {

// Lists are crossed: every batch with every query_len with every kv_len.
struct ShapeRequest {
  std::string op = "gqa";
  std::vector<std::string> method = {"dense", "ffd"};
  std::vector<int32_t> batch = {1};
  std::vector<int32_t> query_len = {1};
  std::vector<int64_t> kv_len = {16384};
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  std::string dtype = "bf16";
  int32_t page_size = 128;
  std::vector<double> kept = {0.01};
  std::string workload = "planted";
  std::string dump;  // safetensors file, workload "dump"
  int32_t layer = 0;
  double near_threshold = 0.01;
  float delta = 5.0f;
  std::vector<float> margin_sigmas = {FfdOptions{}.margin_sigmas};
  bool certified = false;
  int32_t sink_tokens = 128;
  int32_t recent_tokens = 128;
  int64_t seed = 1;
};

// Appends the shapes of a request. Notes what is left out (FFD over an MLA cache) on stderr.
Status expand(const ShapeRequest& request, std::vector<bench::ShapeSpec>& shapes);

// A dump is of the workload dump alone.
Status check_dump(const ShapeRequest& request);

// Layer `layer` of a file as `longdecode dump-qkv` writes it.
Result<std::shared_ptr<const bench::KvSample>> read_dump(const std::string& path, int32_t layer);

// Reads a JSON array of objects whose keys are the members of ShapeRequest, lists where it has
// lists (or single values); what an object leaves out comes from `defaults`.
Result<std::vector<ShapeRequest>> read_shapes_file(const std::string& path,
                                                   const ShapeRequest& defaults);

// A JSON array with one object per row.
std::string rows_to_json(const std::vector<bench::BenchRow>& rows, const DeviceInfo& device);

// An aligned table with the share of the read floor and the ratio to dense on the same shape.
std::string rows_to_table(const std::vector<bench::BenchRow>& rows, const DeviceInfo& device);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_BENCH_ATTENTION_H_
