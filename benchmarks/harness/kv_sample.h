// Queries, keys and values of one layer of a model, repeated until a benchmark's context is full.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_KV_SAMPLE_H_
#define LONGDECODE_BENCHMARKS_HARNESS_KV_SAMPLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::bench {

struct Workload;
struct WorkloadSpec;

struct KvSample {
  std::string source;  // what the rows say of it
  int32_t layer_idx = 0;
  int64_t num_tokens = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  std::vector<float> q;  // [num_tokens, num_q_heads, head_dim], after RoPE
  std::vector<float> k;  // [num_tokens, num_kv_heads, head_dim], after RoPE
  std::vector<float> v;  // as k
};

// The spec has a sample, and its shape is the sample's.
Status check_sample(const WorkloadSpec& spec);

// Token t of every sequence is token t mod num_tokens of the sample, aligned so that the last token
// is the sample's last; the queries are those of the last query_len tokens.
void fill_from_sample(Workload& work, int32_t num_threads);

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_KV_SAMPLE_H_
