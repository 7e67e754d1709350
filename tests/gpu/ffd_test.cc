// FFD decode on CUDA: what the op tests (tests/op/ffd_test.cc, in the same binary) do not ask.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/gpu/device_problem.h"
#include "tests/gpu/mla_workload.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;

ProblemSpec ffd_spec(int32_t group, int32_t num_kv_heads, int32_t head_dim, int32_t page_size,
                     std::vector<int32_t> kv_lens) {
  ProblemSpec spec = gqa_spec(Method::kFfd, DType::kBF16, group * num_kv_heads, num_kv_heads,
                              head_dim, page_size, std::move(kv_lens));
  spec.desc.ffd.sink_tokens = 16;
  spec.desc.ffd.recent_tokens = 20;
  spec.desc.ffd.delta = 3.0f;
  spec.score_deviation = 3.0;
  return spec;
}

std::vector<int32_t> lengths(int32_t count, int32_t most, uint32_t seed) {
  std::vector<int32_t> kv_lens;
  for (int32_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    kv_lens.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(most + 1)));
  }
  return kv_lens;
}

// Fewer pairs than CTAs (splits), more (several items a CTA), and more than a warp schedules.
TEST(CudaFfd, Batches) {
  std::vector<ProblemSpec> specs;
  for (const int32_t batch : {2, 5, 31, 32, 33, 60, 150, 300}) {
    specs.push_back(ffd_spec(4, 2, 128, 64, lengths(batch, 1200, 7)));
    specs.push_back(ffd_spec(3, 1, 64, 128, lengths(batch, 900, 8)));
    specs.back().query_len = 3;
  }
  specs.push_back(ffd_spec(4, 1, 128, 128, {9000, 1, 700, 0, 2500}));
  specs.push_back(ffd_spec(8, 1, 128, 64, {20000}));
  EXPECT_EQ(run_and_check(specs), "");
}

TEST(CudaFfd, BatchAbove65536) {
  std::vector<int32_t> kv_lens(66000, 0);
  for (size_t i = 7; i < kv_lens.size(); i += 5000) kv_lens[i] = 300;
  EXPECT_EQ(run_and_check(ffd_spec(4, 1, 64, 64, kv_lens)), "");
}

// Captured once, replayed after lengths, tables and contents have changed.
TEST(CudaFfd, GraphReplay) {
  for (const int32_t batch : {1, 3, 40}) {
    ProblemSpec first_spec = ffd_spec(4, 2, 128, 64, {});
    for (int32_t s = 0; s < batch; ++s) first_spec.kv_lens.push_back(700 + s);
    first_spec.desc.max_kv_len = 1000;
    first_spec.kv_lens.back() = 1000;
    ProblemSpec second_spec = first_spec;
    std::reverse(second_spec.kv_lens.begin(), second_spec.kv_lens.end());
    second_spec.seed = 2;
    const PagedProblem first(first_spec), second(second_spec);
    CapturedRun captured(test_device());
    for (const PagedProblem* problem : {&first, &second, &first}) {
      const auto replay = [&](const DecodeDesc& desc, const DecodeArgs& host) {
        return captured.run(desc, host, host.kv);
      };
      Outputs outputs = run_with(problem->desc(), problem->args(), replay);
      set_weight_rounding(DType::kBF16, &outputs);
      EXPECT_EQ(check(*problem, outputs), "") << "batch " << batch;
    }
  }
}

// A sequence's bits alone and among others.
TEST(CudaFfd, BatchInvariance) {
  for (const int32_t head_dim : {64, 128}) {
    ProblemSpec many = ffd_spec(4, 2, head_dim, 64, {300, 5, 1500, 64, 900});
    many.desc.batch_invariant = true;
    many.desc.max_batch = 8;
    many.desc.max_kv_len = 1500;
    ProblemSpec alone = many;
    alone.kv_lens = {1500};
    alone.stream_ids = {2};
    const PagedProblem a(many), b(alone);
    const Outputs of_many = run_plan(a.desc(), a.args());
    const Outputs of_one = run_plan(b.desc(), b.args());
    EXPECT_EQ(check(a, of_many), "");
    EXPECT_EQ(same_bits(of_many, 2, of_one, 0), "");
  }
}

}  // namespace
}  // namespace longdecode::testing
