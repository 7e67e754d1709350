// What the CUDA kernels of MLA serve and refuse, and how a run is divided. Needs no GPU: selection
// and the shape of a run are pure functions of the descriptor and the device's facts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "cuda/kernels/mla_decode/sm90/decode_kernel.h"
#include "cuda/kernels/mla_decode/sm90/launch.h"
#include "longdecode/attention.h"
#include "tests/gpu/h200.h"

namespace longdecode {
namespace {

DecodeDesc mla_desc(int32_t num_q_heads = 16) {
  DecodeDesc desc;
  desc.format = KvFormat::mla(DType::kBF16, 64);
  desc.num_q_heads = num_q_heads;
  desc.softmax_scale = 0.0417f;
  desc.max_query_len = 8;
  desc.max_batch = 256;
  desc.max_kv_len = 262144;
  return desc;
}

TEST(MlaSelect, RefusesWhatChangesTheScoresWithTheReason) {
  EXPECT_EQ(refusal(mla_desc()), "served");
  DecodeDesc desc = mla_desc();
  desc.soft_cap = 30.0f;
  EXPECT_NE(refusal(desc).find("soft_cap is 30"), std::string::npos) << refusal(desc);
  desc = mla_desc();
  desc.sliding_window = 4096;
  EXPECT_NE(refusal(desc).find("sliding_window is 4096"), std::string::npos) << refusal(desc);
  desc = mla_desc();
  EXPECT_NE(refusal(mla_desc(), rtx4090()).find("compute_capability is 89; allowed: 90 (sm_90a)"),
            std::string::npos)
      << refusal(mla_desc(), rtx4090());
  desc.learned_sinks = true;
  desc.soft_cap = 30.0f;  // every reason is listed
  EXPECT_NE(refusal(desc).find("learned_sinks is set"), std::string::npos) << refusal(desc);
  EXPECT_NE(refusal(desc).find("soft_cap is 30"), std::string::npos) << refusal(desc);
}

TEST(MlaSelect, SaysTheOrientationOfTheScores) {
  for (const auto& [heads, max_query_len, name] :
       {std::tuple{16, 1, "cuda/mla_decode"}, std::tuple{16, 2, "cuda/mla_decode"},
        std::tuple{16, 3, "cuda/mla_decode_rows"}, std::tuple{33, 1, "cuda/mla_decode_rows"},
        std::tuple{128, 8, "cuda/mla_decode_rows"}}) {
    DecodeDesc desc = mla_desc(heads);
    desc.max_query_len = max_query_len;
    const Result<KernelChoice> choice = select_kernel(desc, h200());
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->name, name) << heads << " heads, max_query_len " << max_query_len;
  }
}

TEST(MlaRunShape, NoCtaIsIdleWhenLengthsAreEqual) {
  const auto shape = cuda::mla_sm90::run_shape(mla_desc(), h200(), 16, 1);
  EXPECT_EQ(shape.num_splits, 8);
  EXPECT_EQ(shape.num_workers, 128);  // not 132
  const auto one = cuda::mla_sm90::run_shape(mla_desc(), h200(), 1, 1);
  EXPECT_EQ(one.num_workers, 128);
  // Where more than a tenth of the SMs would be idle, lengths that differ may use all of them.
  const auto twenty = cuda::mla_sm90::run_shape(mla_desc(), h200(), 20, 1);
  EXPECT_EQ(twenty.num_splits, 6);
  EXPECT_EQ(twenty.num_workers, 120);
  const auto eighteen = cuda::mla_sm90::run_shape(mla_desc(), h200(), 18, 1);
  EXPECT_EQ(eighteen.num_workers, 126);
  const auto thirty = cuda::mla_sm90::run_shape(mla_desc(), h200(), 29, 1);
  EXPECT_EQ(thirty.num_splits, 4);
  EXPECT_EQ(thirty.num_workers, 132);
}

// What a run of `batch` sequences needs, as params.h lays it out.
int64_t needed_workspace(const DecodeDesc& desc, int32_t batch, int32_t query_len) {
  const auto shape = cuda::mla_sm90::run_shape(desc, h200(), batch, query_len);
  const int32_t rows = cuda::mla_sm90::kInstances[shape.instance].rows;
  const int64_t num_partials =
      shape.may_split ? int64_t{shape.num_row_blocks} * 2 * shape.num_workers : 0;
  return num_partials * cuda::mla_sm90::partial_bytes(rows) + 2 * int64_t{sizeof(uint32_t)};
}

// The runs of a plan that need more than its workspace, and the first of them.
std::string runs_without_room(const DecodeDesc& desc) {
  const Result<DecodePlan> plan = DecodePlan::create(desc, h200());
  if (!plan.ok()) return plan.status().message();
  std::string first;
  int32_t num_runs = 0;
  for (int32_t query_len = 1; query_len <= desc.max_query_len; ++query_len) {
    for (int32_t batch = 1; batch <= desc.max_batch; ++batch) {
      const int64_t needed = needed_workspace(desc, batch, query_len);
      if (needed <= plan->workspace_bytes() || ++num_runs > 1) continue;
      first = fmt::format("batch {}, query_len {}: {} bytes of {}", batch, query_len, needed,
                          plan->workspace_bytes());
    }
  }
  return num_runs == 0 ? "" : fmt::format("{} runs, the first: {}", num_runs, first);
}

TEST(MlaRunShape, EveryBatchUpToTheLargestFitsTheWorkspace) {
  for (const bool fixed : {false, true}) {
    for (const int32_t heads : {1, 16, 64, 128}) {
      for (const int32_t max_query_len : {1, 4, 8}) {
        std::string faults;
        for (int32_t max_batch = 1; max_batch <= 64; ++max_batch) {
          DecodeDesc desc = mla_desc(heads);
          desc.batch_invariant = fixed;
          desc.max_query_len = max_query_len;
          desc.max_batch = max_batch;
          const std::string fault = runs_without_room(desc);
          if (!fault.empty()) faults += fmt::format("max_batch {}: {}\n", max_batch, fault);
        }
        EXPECT_EQ(faults, "") << heads << " heads, max_query_len " << max_query_len
                              << ", batch-invariant " << fixed;
      }
    }
  }
}

// CTAs that split a sequence wait for one another, one CTA an SM: all of them must be resident.
TEST(MlaRunShape, WhatMaySplitFitsTheDevice) {
  for (const bool fixed : {false, true}) {
    for (const int32_t heads : {1, 8, 16, 20, 40, 64, 128}) {
      DecodeDesc desc = mla_desc(heads);
      desc.batch_invariant = fixed;
      if (fixed) desc.max_batch = 5;
      for (int32_t query_len = 1; query_len <= desc.max_query_len; ++query_len) {
        for (int32_t batch = 1; batch <= desc.max_batch; ++batch) {
          const auto shape = cuda::mla_sm90::run_shape(desc, h200(), batch, query_len);
          if (!shape.may_split) continue;
          EXPECT_LE(shape.num_workers * shape.num_row_blocks, 132)
              << heads << " heads, query_len " << query_len << ", batch " << batch;
        }
      }
    }
  }
}

}  // namespace
}  // namespace longdecode
