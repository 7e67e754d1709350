#include "benchmarks/harness/kv_sample.h"

#include "base/errors.h"
#include "base/float_convert.h"
#include "benchmarks/harness/workload.h"

namespace longdecode::bench {
namespace {

// Tokens of `to`, [batch, tokens, heads, dim], from those of a sample; the last is last in both.
void copy_tokens(const std::vector<float>& from, int64_t num_tokens, const TensorView& to,
                 int32_t num_threads) {
  const int64_t tokens = to.shape[1], row = to.shape[2] * to.shape[3];
  const int64_t shift = num_tokens - tokens % num_tokens;
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t i = 0; i < to.shape[0] * tokens; ++i) {
    const float* values = from.data() + (i % tokens + shift) % num_tokens * row;
    for (int64_t c = 0; c < row; ++c) store_element(to.data, to.dtype, i * row + c, values[c]);
  }
}

}  // namespace

Status check_sample(const WorkloadSpec& spec) {
  if (spec.sample == nullptr) return invalid_argument("workload dump has no dump");
  const KvSample& sample = *spec.sample;
  if (spec.op != Op::kGqa || spec.num_q_heads != sample.num_q_heads ||
      spec.num_kv_heads != sample.num_kv_heads || spec.key_dim != sample.head_dim ||
      spec.value_dim != sample.head_dim) {
    return invalid_argument(
        "the shape has {} query heads, {} kv heads and head_dim {}; {} has {}, {} and {}",
        spec.num_q_heads, spec.num_kv_heads, spec.key_dim, sample.source, sample.num_q_heads,
        sample.num_kv_heads, sample.head_dim);
  }
  if (sample.num_tokens < spec.query_len) {
    return invalid_argument("query_len is {}; {} has {} tokens", spec.query_len, sample.source,
                            sample.num_tokens);
  }
  return {};
}

void fill_from_sample(Workload& work, int32_t num_threads) {
  const KvSample& sample = *work.spec.sample;
  copy_tokens(sample.q, sample.num_tokens, work.q, num_threads);
  copy_tokens(sample.k, sample.num_tokens, work.k, num_threads);
  copy_tokens(sample.v, sample.num_tokens, work.v, num_threads);
}

}  // namespace longdecode::bench
