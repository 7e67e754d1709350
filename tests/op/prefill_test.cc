// Prefill: a chunk of query tokens over the cache that already holds their keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/backend.h"
#include "ops/backends.h"
#include "ref/attention.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

struct PrefillCase {
  ProblemSpec spec;  // one sequence
  int32_t num_tokens = 1;
};

// The chunk's queries come from a decode problem of `num_tokens` one-token batches: q rows of the
// sequence, repeated with a shift so that every token has its own.
std::vector<float> chunk_queries(LogicalSequence& s, int32_t num_tokens) {
  const int32_t row = s.num_q_heads * s.key_dim;
  std::vector<float> q(static_cast<size_t>(num_tokens * row));
  for (int32_t t = 0; t < num_tokens; ++t) {
    for (int32_t i = 0; i < row; ++i) {
      q[static_cast<size_t>(t * row + i)] = s.q[static_cast<size_t>((i + 17 * t) % row)];
    }
  }
  return q;
}

std::string run_prefill(const PrefillCase& test) {
  PagedProblem problem(test.spec);
  const DecodeDesc& desc = problem.desc();
  const int64_t heads = desc.num_q_heads;
  const std::vector<float> q = chunk_queries(problem.sequence(0), test.num_tokens);
  PrefillArgs args;
  GuardedBuffer queries(static_cast<int64_t>(q.size()) * 4);
  std::copy(q.begin(), q.end(), queries.data<float>());
  GuardedBuffer o(test.num_tokens * heads * desc.format.value_dim * 4);
  args.q = TensorView::contiguous(queries.data(), DType::kF32,
                                  {test.num_tokens, heads, desc.format.key_dim});
  args.o = TensorView::contiguous(o.data(), DType::kF32,
                                  {test.num_tokens, heads, desc.format.value_dim});
  args.kv = problem.args().kv;
  args.batch = problem.args().batch;
  args.softmax_scale = static_cast<float>(resolved_scale(desc));
  args.soft_cap = desc.soft_cap;
  args.sliding_window = desc.sliding_window;
  args.sink_logits = problem.args().sink_logits;
  const Status status = prefill_attention(args, cpu_device(), nullptr);
  if (!status.ok()) return status.message();
  if (!o.canaries_intact() || !queries.canaries_intact()) return "wrote outside a buffer";
  if (!problem.damage().empty()) return problem.damage();
  const ref::AttentionOutput expected = ref::prefill(args);
  for (size_t i = 0; i < expected.o.size(); ++i) {
    const double got{o.data<float>()[i]};
    // fp32 throughout: 2^-24 times the terms of a dot product and of the sums over 500 tokens.
    if (!(std::abs(got - expected.o[i]) <= 2e-5)) {
      return "o[" + std::to_string(i) + "] is " + std::to_string(got) + ", should be " +
             std::to_string(expected.o[i]) + "\n" + problem.repro();
    }
  }
  return "";
}

TEST(PrefillOp, QuickFormatsChunksAndMasks) {
  for (const int32_t num_tokens : {1, 2, 16, 63, 200}) {
    std::vector<ProblemSpec> specs = {
        gqa_spec(Method::kDense, DType::kBF16, 6, 2, 64, 16, {300}),
        gqa_spec(Method::kDense, DType::kF16, 4, 4, 80, 1, {200}),
        gqa_spec(Method::kDense, DType::kF32, 9, 3, 128, 128, {257}),
        gqa_spec(Method::kFfd, DType::kBF16, 6, 2, 64, 64, {333}),
        gqa_spec(Method::kFfd, DType::kF16, 4, 1, 96, 128, {400}),
        mla_spec(DType::kBF16, 4, 64, {210}),
    };
    specs.push_back(specs[0]);
    specs.back().desc.sliding_window = 40;
    specs.push_back(specs[3]);
    specs.back().desc.soft_cap = 5.0f;
    specs.back().desc.learned_sinks = true;
    for (const ProblemSpec& spec : specs) EXPECT_EQ(run_prefill({spec, num_tokens}), "");
  }
}

TEST(PrefillOp, QuickTheWholePromptIsTheChunk) {
  for (const int32_t kv_len : {1, 15, 72, 136, 200}) {
    EXPECT_EQ(run_prefill({gqa_spec(Method::kDense, DType::kBF16, 4, 2, 64, 16, {kv_len}), kv_len}),
              "");
    EXPECT_EQ(run_prefill({gqa_spec(Method::kFfd, DType::kBF16, 4, 2, 64, 64, {kv_len}), kv_len}),
              "");
  }
}

}  // namespace
}  // namespace longdecode::testing
