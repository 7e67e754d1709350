// MLA decode on CUDA: what the op tests (tests/op/mla_test.cc and those of MLA in
// tests/op/non_finite_test.cc, in the same binary) do not ask.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/device_problem.h"
#include "tests/gpu/mla_workload.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;

constexpr int64_t kDim = 512;

// Sequences 1 and 2 hold the two parts of sequence 0.
ProblemSpec parts_spec(int32_t heads, int32_t kv_len, int32_t cut) {
  ProblemSpec spec = mla_spec(DType::kBF16, heads, 64, {kv_len, cut, kv_len - cut});
  spec.note = "cut at " + std::to_string(cut);
  spec.edit = [=](LogicalSequence& s, int32_t stream) {
    const int32_t begin = stream == 2 ? cut : 0;
    for (int32_t j = 0; j < s.kv_len; ++j) {
      for (int32_t c = 0; c < s.key_dim; ++c) {
        s.key(j, 0)[c] = std::sin(0.37f * static_cast<float>((begin + j) * (c + 1)));
      }
    }
    for (size_t i = 0; i < s.q.size(); ++i) s.q[i] = std::sin(static_cast<float>(i));
  };
  return spec;
}

// Sequences 1 and 2, merged on the device, in the place of sequence 0.
void merge_parts(int64_t num_rows, Outputs* outputs) {
  std::vector<float> partial_o, partial_lse;
  for (int64_t i = num_rows; i < 3 * num_rows; ++i) {
    partial_lse.push_back(static_cast<float>(outputs->lse[i]));
    const bool is_empty = std::isinf(partial_lse.back());
    for (int64_t c = 0; c < kDim; ++c) {
      partial_o.push_back(is_empty ? std::numeric_limits<float>::quiet_NaN()
                                   : static_cast<float>(outputs->o[i * kDim + c]));
    }
  }
  std::vector<float> o(num_rows * kDim), lse(num_rows);
  DeviceMemory d_partial_o(partial_o.size() * 4), d_partial_lse(partial_lse.size() * 4);
  DeviceMemory d_o(o.size() * 4), d_lse(lse.size() * 4);
  d_partial_o.copy_from(partial_o.data(), d_partial_o.num_bytes());
  d_partial_lse.copy_from(partial_lse.data(), d_partial_lse.num_bytes());
  const MergeArgs args{2,
                       num_rows,
                       kDim,
                       d_partial_o.data<float>(),
                       d_partial_lse.data<float>(),
                       d_o.data<float>(),
                       d_lse.data<float>()};
  const Status status = merge_partials(args, test_device(), nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  check_cuda(cudaDeviceSynchronize(), "merge_partials");
  d_o.copy_to(o.data(), d_o.num_bytes());
  d_lse.copy_to(lse.data(), d_lse.num_bytes());
  std::copy(o.begin(), o.end(), outputs->o.begin());
  std::copy(lse.begin(), lse.end(), outputs->lse.begin());
}

TEST(CudaMla, Case16PartsMergeToTheWhole) {
  for (const int32_t heads : {3, 16, 64}) {
    for (const auto& [kv_len, cut] : {std::pair{600, 0}, std::pair{600, 1}, std::pair{600, 300},
                                      std::pair{600, 600}, std::pair{4000, 1984}}) {
      const PagedProblem problem(parts_spec(heads, kv_len, cut));
      Outputs outputs = run_plan(problem.desc(), problem.args());
      ASSERT_EQ(check(problem, outputs), "") << problem.repro();
      merge_parts(heads, &outputs);
      // The parts were rounded to 16 bits: sum_p w_p |o_p| <= sum_j p_j |v_j|.
      outputs.weight_unit *= 2;
      EXPECT_EQ(check(problem, outputs), "") << problem.repro();
    }
  }
}

// Tokens of a sequence without query tokens are not attended.
TEST(CudaMla, StatisticsOfAllTokensAttended) {
  for (const bool ragged : {false, true}) {
    ProblemSpec spec = mla_spec(DType::kBF16, 16, 64, {0, 1, 700, 64, 2500});
    spec.query_len = 2;
    if (ragged) spec.query_lens = {2, 1, 0, 2, 1};
    const PagedProblem problem(spec);
    std::vector<uint32_t> words;
    int64_t stride = 0;
    Outputs outputs = run_with(
        problem.desc(), problem.args(), [&](const DecodeDesc& desc, const DecodeArgs& host) {
          DeviceProblem on_device(desc, host, test_device());
          if (!on_device.status().ok()) return on_device.status();
          const Status status = on_device.run(nullptr);
          on_device.download(host);
          stride = host.stats.kept_tiles_stride;
          words.assign(host.stats.kept_tiles, host.stats.kept_tiles + problem.batch() * stride);
          return status;
        });
    set_weight_rounding(DType::kBF16, &outputs);
    EXPECT_EQ(check(problem, outputs), "");
    ASSERT_TRUE(outputs.status.ok());
    for (int32_t b = 0; b < problem.batch(); ++b) {
      const int64_t attended = ragged && spec.query_lens[b] == 0 ? 0 : spec.kv_lens[b];
      EXPECT_EQ(outputs.bytes_read[b], attended * 576 * 2) << b;
      for (int64_t tile = 0; tile < 32 * stride; ++tile) {
        const bool is_kept = (words[b * stride + tile / 32] >> tile % 32 & 1) != 0;
        ASSERT_EQ(is_kept, tile * kTileTokens < attended) << "batch " << b << " tile " << tile;
      }
    }
  }
}

}  // namespace
}  // namespace longdecode::testing
