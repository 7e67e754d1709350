// What the CUDA kernels of GQA serve and refuse, and with which reasons. Needs no GPU: selection is
// a pure function of the descriptor and the device's facts.
#include <gtest/gtest.h>

#include <string>

#include "cuda/kernels/ffd_decode/decode_kernel.h"
#include "cuda/kernels/gqa_decode/decode_kernel.h"
#include "longdecode/attention.h"
#include "tests/gpu/h200.h"

namespace longdecode {
namespace {

DecodeDesc dense_desc(int32_t head_dim = 128, int32_t page_size = 64) {
  DecodeDesc desc;
  desc.format = KvFormat::gqa(KeyEncoding::kPlain, DType::kBF16, 8, head_dim, page_size);
  desc.max_kv_len = 262144;
  return desc;
}

TEST(GqaSelect, ServesEveryShapeOfTheFamily) {
  for (const int32_t head_dim : {64, 96, 128, 256}) {
    for (const int32_t page_size : {16, 32, 64, 128}) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        DecodeDesc desc = dense_desc(head_dim, page_size);
        desc.format.dtype = desc.q_dtype = dtype;
        desc.soft_cap = 30.0f;
        desc.sliding_window = 1000;
        desc.learned_sinks = true;
        desc.max_query_len = 8;
        desc.max_batch = 65536;
        desc.max_kv_len = 100000;
        const Result<KernelChoice> choice = select_kernel(desc, h200());
        ASSERT_TRUE(choice.ok()) << choice.status().message();
        EXPECT_EQ(choice->name, "cuda/gqa_decode");
        EXPECT_EQ(choice->isa, "sm_90a");
      }
    }
  }
}

// One family for every GPU from 8.0 on but Hopper, with bf16 at head_dim 128.
TEST(GqaSelect, OtherGpusThanHopperRunTheKernelsOfSm80) {
  for (const int32_t capability : {80, 86, 89, 100, 120}) {
    DeviceInfo device = rtx4090();
    device.compute_capability = capability;
    DecodeDesc desc = dense_desc(128, 16);
    desc.num_q_heads = 8 * 16;
    desc.max_query_len = 8;
    desc.soft_cap = 30.0f;
    const Result<KernelChoice> choice = select_kernel(desc, device);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->name, "cuda/gqa_decode");
    EXPECT_EQ(choice->isa, "sm_80");
    desc = dense_desc(64);
    desc.format.dtype = desc.q_dtype = DType::kF16;
    const std::string reasons = refusal(desc, device);
    EXPECT_NE(reasons.find("format.key_dim is 64; allowed where compute_capability is"),
              std::string::npos)
        << reasons;
    EXPECT_NE(reasons.find("format.dtype is f16; allowed where compute_capability is"),
              std::string::npos)
        << reasons;
  }
  DeviceInfo small = rtx4090();
  small.shared_memory_bytes = 65536;
  EXPECT_NE(refusal(dense_desc(), small).find("shared_memory_bytes is 65536"), std::string::npos);
  DeviceInfo old = rtx4090();
  old.compute_capability = 75;
  EXPECT_NE(refusal(dense_desc(), old).find("compute_capability is 75; allowed: 80 or more"),
            std::string::npos);
}

TEST(GqaSelect, RefusalsListEveryReason) {
  DeviceInfo old = h200();
  old.compute_capability = 75;
  DecodeDesc desc = dense_desc(80, 1);
  const std::string reasons = refusal(desc, old);
  EXPECT_NE(reasons.find("compute_capability is 75"), std::string::npos) << reasons;
  EXPECT_NE(reasons.find("key_dim is 80"), std::string::npos) << reasons;
  EXPECT_NE(reasons.find("page_size is 1;"), std::string::npos) << reasons;
  desc = dense_desc();
  desc.q_dtype = DType::kF16;
  EXPECT_NE(refusal(desc).find("q_dtype is f16 and format.dtype bf16"), std::string::npos)
      << refusal(desc);
  desc = dense_desc();
  desc.max_batch = 1 << 20;
  EXPECT_NE(refusal(desc).find("at most 2^31 - 1"), std::string::npos) << refusal(desc);
}

TEST(GqaSelect, RefusesFfdOverPlainPages) {
  for (const DeviceInfo& device : {h200(), rtx4090()}) {
    DecodeDesc desc = dense_desc();
    desc.method = Method::kFfd;
    EXPECT_NE(refusal(desc, device).find("method is ffd with format.keys plain; allowed: dense"),
              std::string::npos)
        << refusal(desc, device);
  }
}

// Dense attention over two planes is FFD that keeps everything.
TEST(GqaSelect, TwoPlanesGoToFfdForBothMethods) {
  DecodeDesc desc = dense_desc();
  desc.format.keys = KeyEncoding::kTwoPlane;
  for (const Method method : {Method::kDense, Method::kFfd}) {
    desc.method = method;
    const Result<KernelChoice> choice = select_kernel(desc, h200());
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->name, "cuda/ffd_decode");
  }
}

// In the 99 KB of those that have the least, whatever the rows and the page size, and with more
// stages where there is more.
TEST(FfdSelect, Sm80FitsItsSharedMemory) {
  DeviceInfo a100 = rtx4090();
  a100.compute_capability = 80;
  a100.shared_memory_bytes = 166912;
  for (const int32_t group : {1, 4, 5, 16}) {
    for (const int32_t page_size : {64, 128}) {
      for (int32_t query_len = 1; query_len <= 8; ++query_len) {
        DecodeDesc desc = dense_desc(128, page_size);
        desc.format.keys = KeyEncoding::kTwoPlane;
        desc.method = Method::kFfd;
        desc.num_q_heads = 8 * group;
        desc.max_query_len = query_len;
        const Result<KernelChoice> choice = select_kernel(desc, rtx4090());
        ASSERT_TRUE(choice.ok()) << choice.status().message();
        EXPECT_EQ(choice->isa, "sm_80");
        const auto plan = cuda::ffd::plan_run(desc, rtx4090(), query_len);
        EXPECT_LE(plan.shared_bytes, 101376);
        EXPECT_GE(plan.num_stages, 1);
        EXPECT_GE(cuda::ffd::plan_run(desc, a100, query_len).num_stages, 2);
      }
    }
  }
}

TEST(FfdSelect, RefusalsListEveryReason) {
  DecodeDesc desc = dense_desc();
  desc.format.keys = KeyEncoding::kTwoPlane;
  desc.method = Method::kFfd;
  desc.soft_cap = 30.0f;
  desc.sliding_window = 4096;
  desc.learned_sinks = true;
  for (const char* reason : {"soft_cap is 30", "sliding_window is 4096", "learned_sinks is set"}) {
    EXPECT_NE(refusal(desc).find(reason), std::string::npos) << refusal(desc);
  }
  desc = dense_desc(80, 64);
  desc.format.keys = KeyEncoding::kTwoPlane;
  EXPECT_NE(refusal(desc).find("key_dim is 80"), std::string::npos) << refusal(desc);
}

TEST(GqaRunShape, RowGroupsFillCtasAndWorkersFillTheDevice) {
  const DecodeDesc desc = dense_desc();
  const auto one = cuda::gqa::run_shape(desc, h200(), 1, 1);
  EXPECT_EQ(one.num_row_groups, 1);
  EXPECT_EQ(one.num_workers, 264);
  EXPECT_TRUE(one.may_split);
  EXPECT_TRUE(one.merges_by_pair);
  const auto five = cuda::gqa::run_shape(desc, h200(), 1, 8);  // 32 rows
  EXPECT_EQ(five.num_row_groups, 4);
  EXPECT_EQ(five.num_row_blocks, 1);
  EXPECT_EQ(five.num_workers, 132);
  DecodeDesc wide = dense_desc();
  wide.num_q_heads = 8 * 16;
  const auto most = cuda::gqa::run_shape(wide, h200(), 40, 8);  // 128 rows
  EXPECT_EQ(most.num_row_groups, 16);
  EXPECT_EQ(most.num_row_blocks, 4);
  EXPECT_EQ(most.num_workers, 33);
  EXPECT_FALSE(most.merges_by_pair);
}

TEST(GqaRunShape, OneCtaAnSmOnSm80) {
  const auto one = cuda::gqa::run_shape(dense_desc(), rtx4090(), 1, 1);
  EXPECT_EQ(one.num_workers, 128);
  const auto four = cuda::gqa::run_shape(dense_desc(), rtx4090(), 1, 8);  // 32 rows
  EXPECT_EQ(four.cta_row_groups, 2);
  EXPECT_EQ(four.num_row_blocks, 2);
  EXPECT_EQ(four.num_workers, 64);
}

TEST(GqaRunShape, FixedSplitsDoNotDependOnTheRun) {
  DecodeDesc desc = dense_desc();
  desc.batch_invariant = true;
  desc.max_batch = 3;
  desc.max_query_len = 4;
  const int32_t splits = cuda::gqa::run_shape(desc, h200(), 3, 4).num_splits;
  EXPECT_EQ(splits, 132 / 24);
  for (int32_t query_len = 1; query_len <= 4; ++query_len) {
    const auto shape = cuda::gqa::run_shape(desc, h200(), 1, query_len);
    EXPECT_EQ(shape.num_splits, splits);
    EXPECT_EQ(shape.num_workers, 8 * splits);
  }
}

}  // namespace
}  // namespace longdecode
