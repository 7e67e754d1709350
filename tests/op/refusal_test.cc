// Bad requests are refused with the argument, its value and what is allowed; nothing is written.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct DescCase {
  const char* argument;  // in the message
  const char* value;     // in the message
  std::function<void(DecodeDesc*)> edit;
};

void expect_refused(const Status& status, const std::string& argument, const std::string& value) {
  EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument ||
              status.code() == StatusCode::kUnsupported)
      << argument << " " << value << ": code " << int(status.code()) << " " << status.message();
  EXPECT_NE(status.message().find(argument), std::string::npos)
      << argument << " not named in: " << status.message();
  EXPECT_NE(status.message().find(value), std::string::npos)
      << value << " not named in: " << status.message();
  bool says_what_is_right = false;
  for (const char* word : {"allow", "needs", "must"}) {
    says_what_is_right = says_what_is_right || status.message().find(word) != std::string::npos;
  }
  EXPECT_TRUE(says_what_is_right) << status.message();
}

DecodeDesc good_desc() {
  return resolved_desc(gqa_spec(Method::kDense, DType::kBF16, 8, 2, 64, 16, {100}));
}

std::vector<DescCase> format_cases() {
  return {
      {"key_dim", "72", [](DecodeDesc* d) { d->format.key_dim = d->format.value_dim = 72; }},
      {"key_dim", "0", [](DecodeDesc* d) { d->format.key_dim = 0; }},
      {"key_dim", "-64", [](DecodeDesc* d) { d->format.key_dim = -64; }},
      {"value_dim", "128", [](DecodeDesc* d) { d->format.value_dim = 128; }},
      {"page_size", "24", [](DecodeDesc* d) { d->format.page_size = 24; }},
      {"page_size", "0", [](DecodeDesc* d) { d->format.page_size = 0; }},
      {"page_size", "256", [](DecodeDesc* d) { d->format.page_size = 256; }},
      {"page_size", "16",
       [](DecodeDesc* d) {
         d->format.keys = KeyEncoding::kTwoPlane;
         d->method = Method::kFfd;
       }},
      {"num_kv_heads", "0", [](DecodeDesc* d) { d->format.num_kv_heads = 0; }},
      {"num_kv_heads", "-2", [](DecodeDesc* d) { d->format.num_kv_heads = -2; }},
      {"dtype", "7", [](DecodeDesc* d) { d->format.dtype = static_cast<DType>(7); }},
      {"op", "9", [](DecodeDesc* d) { d->format.op = static_cast<Op>(9); }},
      {"keys", "3", [](DecodeDesc* d) { d->format.keys = static_cast<KeyEncoding>(3); }},
      {"keys", "0", [](DecodeDesc* d) { d->method = Method::kFfd; }},  // FFD over plain keys
  };
}

std::vector<DescCase> option_cases() {
  return {
      {"q", "5", [](DecodeDesc* d) { d->q_dtype = static_cast<DType>(5); }},
      {"method", "4", [](DecodeDesc* d) { d->method = static_cast<Method>(4); }},
      {"num_q_heads", "9", [](DecodeDesc* d) { d->num_q_heads = 9; }},
      {"num_q_heads", "0", [](DecodeDesc* d) { d->num_q_heads = 0; }},
      {"num_q_heads", "34", [](DecodeDesc* d) { d->num_q_heads = 34; }},  // a group of 17
      {"max_batch", "0", [](DecodeDesc* d) { d->max_batch = 0; }},
      {"max_query_len", "0", [](DecodeDesc* d) { d->max_query_len = 0; }},
      {"max_query_len", "9", [](DecodeDesc* d) { d->max_query_len = 9; }},
      {"max_kv_len", "0", [](DecodeDesc* d) { d->max_kv_len = 0; }},
      {"max_kv_len", "-5", [](DecodeDesc* d) { d->max_kv_len = -5; }},
      {"max_kv_len", "1099511627776", [](DecodeDesc* d) { d->max_kv_len = int64_t{1} << 40; }},
      {"softmax_scale", "-1", [](DecodeDesc* d) { d->softmax_scale = -1.0f; }},
      {"softmax_scale", "nan", [](DecodeDesc* d) { d->softmax_scale = std::nanf(""); }},
      {"softmax_scale", "inf", [](DecodeDesc* d) { d->softmax_scale = kInfinity; }},
      {"soft_cap", "-2", [](DecodeDesc* d) { d->soft_cap = -2.0f; }},
      {"sliding_window", "-1", [](DecodeDesc* d) { d->sliding_window = -1; }},
  };
}

TEST(Refusal, QuickCase10DescriptorsAtPlanTime) {
  ASSERT_TRUE(DecodePlan::create(good_desc(), cpu_device()).ok());
  for (const std::vector<DescCase>& cases : {format_cases(), option_cases()}) {
    for (const DescCase& bad : cases) {
      DecodeDesc desc = good_desc();
      bad.edit(&desc);
      const Result<DecodePlan> plan = DecodePlan::create(desc, cpu_device());
      ASSERT_FALSE(plan.ok()) << bad.argument << " " << bad.value;
      expect_refused(plan.status(), bad.argument, bad.value);
      const Result<KernelChoice> choice = select_kernel(desc, cpu_device());
      ASSERT_FALSE(choice.ok());
      EXPECT_EQ(choice.status().message(), plan.status().message());
    }
  }
}

TEST(Refusal, QuickFfdAndMlaDescriptors) {
  const DecodeDesc ffd = resolved_desc(gqa_spec(Method::kFfd, DType::kBF16, 8, 2, 64, 64, {100}));
  const std::vector<DescCase> ffd_cases = {
      {"delta", "-1", [](DecodeDesc* d) { d->ffd.delta = -1.0f; }},
      {"delta", "nan", [](DecodeDesc* d) { d->ffd.delta = std::nanf(""); }},
      {"margin_sigmas", "-1", [](DecodeDesc* d) { d->ffd.margin_sigmas = -1.0f; }},
      {"margin_sigmas", "inf", [](DecodeDesc* d) { d->ffd.margin_sigmas = kInfinity; }},
      {"sink_tokens", "-1", [](DecodeDesc* d) { d->ffd.sink_tokens = -1; }},
      {"recent_tokens", "-7", [](DecodeDesc* d) { d->ffd.recent_tokens = -7; }},
  };
  for (const DescCase& bad : ffd_cases) {
    DecodeDesc desc = ffd;
    bad.edit(&desc);
    expect_refused(select_kernel(desc, cpu_device()).status(), bad.argument, bad.value);
  }
  const DecodeDesc mla = resolved_desc(mla_spec(DType::kBF16, 16, 64, {100}));
  const std::vector<DescCase> mla_cases = {
      {"softmax_scale", "0", [](DecodeDesc* d) { d->softmax_scale = 0.0f; }},
      {"num_q_heads", "129", [](DecodeDesc* d) { d->num_q_heads = 129; }},
      {"key_dim", "512", [](DecodeDesc* d) { d->format.key_dim = 512; }},
      {"num_kv_heads", "2", [](DecodeDesc* d) { d->format.num_kv_heads = 2; }},
      {"keys", "1", [](DecodeDesc* d) { d->format.keys = KeyEncoding::kTwoPlane; }},
      {"method", "1", [](DecodeDesc* d) { d->method = Method::kFfd; }},
  };
  for (const DescCase& bad : mla_cases) {
    DecodeDesc desc = mla;
    bad.edit(&desc);
    expect_refused(select_kernel(desc, cpu_device()).status(), bad.argument, bad.value);
  }
}

TEST(Refusal, QuickCase24DevicesThatAreNotThere) {
  DeviceInfo device = cpu_device();
  device.num_threads = 0;
  expect_refused(DecodePlan::create(good_desc(), device).status(), "num_threads", "0");
  EXPECT_EQ(detect_device(DeviceType::kCpu, 3).status().code(), StatusCode::kUnavailable);
  device = cpu_device();
  device.type = static_cast<DeviceType>(8);
  EXPECT_EQ(select_kernel(good_desc(), device).status().code(), StatusCode::kUnavailable);
}

TEST(Refusal, QuickCallsOutOfOrderAndBadWorkspaces) {
  const PagedProblem problem(gqa_spec(Method::kDense, DType::kBF16, 8, 2, 64, 16, {100}));
  Result<DecodePlan> plan = DecodePlan::create(problem.desc(), cpu_device());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->run(problem.args(), nullptr).code(), StatusCode::kFailedPrecondition);
  GuardedBuffer workspace(plan->workspace_bytes() + 16);
  expect_refused(plan->init(nullptr, nullptr), "workspace", "allowed");
  expect_refused(plan->init(workspace.data() + 4, nullptr), "workspace", "16");
}

TEST(Refusal, QuickCase26WorkspaceSizesDoNotOverflow) {
  DecodeDesc desc = resolved_desc(mla_spec(DType::kBF16, 128, 64, {100}));
  desc.max_batch = 512;
  desc.max_query_len = 8;
  desc.max_kv_len = 1 << 20;
  const Result<DecodePlan> plan = DecodePlan::create(desc, cpu_device());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // At least one partial of 128 heads x 8 query tokens x 512 channels for each sequence.
  EXPECT_GE(plan->workspace_bytes(), int64_t{512} * 128 * 8 * 512 * 4);
}

// What a run may not be given. The edit may keep replacement arrays in `ints`.
struct RunCase {
  const char* argument;
  const char* value;
  std::function<void(DecodeArgs*, std::vector<int32_t>* ints)> edit;
};

void expect_runs_refused(const ProblemSpec& spec, const std::vector<RunCase>& cases) {
  const PagedProblem problem(spec);
  ASSERT_EQ(check(problem, run_plan(problem.desc(), problem.args())), "");
  Result<DecodePlan> plan = DecodePlan::create(problem.desc(), cpu_device());
  ASSERT_TRUE(plan.ok());
  GuardedBuffer workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->init(workspace.data(), nullptr).ok());
  for (const RunCase& bad : cases) {
    SCOPED_TRACE(::testing::Message() << bad.argument << " " << bad.value);
    DecodeArgs args = problem.args();
    args.o = args.q;
    args.o.shape[3] = problem.desc().format.value_dim;
    const int64_t rows = args.q.shape[0] * args.q.stride[0];
    GuardedBuffer o(rows * dtype_bytes(args.q.dtype) + 64);
    GuardedBuffer lse(args.q.shape[0] * args.q.shape[1] * args.q.shape[2] * 4);
    args.o.data = o.data();
    args.lse = lse.data<float>();
    const uint64_t before = o.fingerprint() ^ lse.fingerprint();
    std::vector<int32_t> ints;
    bad.edit(&args, &ints);
    const Status status = plan->run(args, nullptr);
    expect_refused(status, bad.argument, bad.value);
    EXPECT_EQ(o.fingerprint() ^ lse.fingerprint(), before) << "written before it was refused";
    EXPECT_TRUE(o.canaries_intact() && lse.canaries_intact());
  }
  EXPECT_EQ(problem.damage(), "");
}

std::vector<RunCase> tensor_cases() {
  const auto shift = [](void* data) { return static_cast<void*>(static_cast<char*>(data) + 2); };
  return {
      {"q.data", "0x0", [](DecodeArgs* a, std::vector<int32_t>*) { a->q.data = nullptr; }},
      {"q", "16", [=](DecodeArgs* a, std::vector<int32_t>*) { a->q.data = shift(a->q.data); }},
      {"q.dtype", "0", [](DecodeArgs* a, std::vector<int32_t>*) { a->q.dtype = DType::kF32; }},
      {"q.rank", "3", [](DecodeArgs* a, std::vector<int32_t>*) { a->q.rank = 3; }},
      {"q.shape", "63", [](DecodeArgs* a, std::vector<int32_t>*) { a->q.shape[3] = 63; }},
      {"q.shape", "7", [](DecodeArgs* a, std::vector<int32_t>*) { a->q.shape[2] = 7; }},
      {"q.stride[3]", "2", [](DecodeArgs* a, std::vector<int32_t>*) { a->q.stride[3] = 2; }},
      {"q.stride[2]", "65", [](DecodeArgs* a, std::vector<int32_t>*) { a->q.stride[2] = 65; }},
      {"o", "16", [=](DecodeArgs* a, std::vector<int32_t>*) { a->o.data = shift(a->o.data); }},
      {"o.dtype", "1", [](DecodeArgs* a, std::vector<int32_t>*) { a->o.dtype = DType::kF16; }},
      {"o.shape", "32", [](DecodeArgs* a, std::vector<int32_t>*) { a->o.shape[3] = 32; }},
      {"o.stride", "0", [](DecodeArgs* a, std::vector<int32_t>*) { a->o.stride[2] = 0; }},
  };
}

std::vector<RunCase> batch_cases() {
  return {
      {"batch.batch", "3", [](DecodeArgs* a, std::vector<int32_t>*) { a->batch.batch = 3; }},
      {"batch.batch", "-1", [](DecodeArgs* a, std::vector<int32_t>*) { a->batch.batch = -1; }},
      {"query_len", "0", [](DecodeArgs* a, std::vector<int32_t>*) { a->query_len = 0; }},
      {"query_len", "3", [](DecodeArgs* a, std::vector<int32_t>*) { a->query_len = 3; }},
      {"kv_lens", "null", [](DecodeArgs* a, std::vector<int32_t>*) { a->batch.kv_lens = nullptr; }},
      {"block_table", "null",
       [](DecodeArgs* a, std::vector<int32_t>*) { a->batch.block_table = nullptr; }},
      {"block_table_stride", "1",
       [](DecodeArgs* a, std::vector<int32_t>*) { a->batch.block_table_stride = 1; }},
      {"kv_lens[1]", "301",
       [](DecodeArgs* a, std::vector<int32_t>* ints) {
         *ints = {300, 301};
         a->batch.kv_lens = ints->data();
       }},
      {"kv_lens[0]", "-1",
       [](DecodeArgs* a, std::vector<int32_t>* ints) {
         *ints = {-1, 5};
         a->batch.kv_lens = ints->data();
       }},
      {"query_lens[1]", "3",
       [](DecodeArgs* a, std::vector<int32_t>* ints) {
         *ints = {1, 3};
         a->batch.query_lens = ints->data();
       }},
      {"block_table[0, 1]", "2147480000",
       [](DecodeArgs* a, std::vector<int32_t>* ints) {
         ints->assign(a->batch.block_table, a->batch.block_table + 2 * a->batch.block_table_stride);
         (*ints)[1] = 2147480000;
         a->batch.block_table = ints->data();
       }},
      {"block_table[0, 0]", "-1",
       [](DecodeArgs* a, std::vector<int32_t>* ints) {
         ints->assign(a->batch.block_table, a->batch.block_table + 2 * a->batch.block_table_stride);
         (*ints)[0] = -1;
         a->batch.block_table = ints->data();
       }},
      {"kv.format", "128",
       [](DecodeArgs* a, std::vector<int32_t>*) { a->kv.format.page_size = 128; }},
      {"sink_logits", "given",
       [](DecodeArgs* a, std::vector<int32_t>*) { a->sink_logits = a->lse; }},
      {"kept_tiles_stride", "0",
       [](DecodeArgs* a, std::vector<int32_t>*) {
         a->stats.kept_tiles = reinterpret_cast<uint32_t*>(a->lse);
       }},
  };
}

TEST(Refusal, QuickRunsOfDense) {
  ProblemSpec spec = gqa_spec(Method::kDense, DType::kBF16, 8, 2, 64, 64, {300, 200});
  spec.query_len = 2;
  std::vector<RunCase> cases = tensor_cases();
  for (RunCase& extra : batch_cases()) cases.push_back(std::move(extra));
  cases.push_back({"kv.k", "16", [](DecodeArgs* a, std::vector<int32_t>*) {
                     a->kv.k.data = static_cast<char*>(a->kv.k.data) + 2;
                   }});
  cases.push_back(
      {"kv.v.shape", "32", [](DecodeArgs* a, std::vector<int32_t>*) { a->kv.v.shape[2] = 32; }});
  cases.push_back({"kv.k.dtype", "1",
                   [](DecodeArgs* a, std::vector<int32_t>*) { a->kv.k.dtype = DType::kF16; }});
  cases.push_back({"kv.k.stride[0]", "4097",
                   [](DecodeArgs* a, std::vector<int32_t>*) { a->kv.k.stride[0] = 4097; }});
  expect_runs_refused(spec, cases);
  spec.desc.learned_sinks = true;
  expect_runs_refused(spec, {{"sink_logits", "null", [](DecodeArgs* a, std::vector<int32_t>*) {
                                a->sink_logits = nullptr;
                              }}});
}

TEST(Refusal, QuickRunsOfFfd) {
  ProblemSpec spec = gqa_spec(Method::kFfd, DType::kBF16, 8, 2, 64, 64, {300, 200});
  spec.query_len = 2;
  std::vector<RunCase> cases = tensor_cases();
  for (RunCase& extra : batch_cases()) cases.push_back(std::move(extra));
  cases.push_back(
      {"slots", "null", [](DecodeArgs* a, std::vector<int32_t>*) { a->batch.slots = nullptr; }});
  cases.push_back({"slots[1]", "99", [](DecodeArgs* a, std::vector<int32_t>* ints) {
                     *ints = {0, 99};
                     a->batch.slots = ints->data();
                   }});
  cases.push_back(
      {"kv.chunks", "0x0", [](DecodeArgs* a, std::vector<int32_t>*) { a->kv.chunks = nullptr; }});
  cases.push_back(
      {"kv.residuals", "16", [](DecodeArgs* a, std::vector<int32_t>*) { a->kv.residuals += 1; }});
  cases.push_back({"kv.chunks", "8", [](DecodeArgs* a, std::vector<int32_t>*) {
                     a->kv.chunk_page_stride_bytes = 8;
                   }});
  cases.push_back({"recent_k.shape", "70",
                   [](DecodeArgs* a, std::vector<int32_t>*) { a->kv.recent_k.shape[2] = 70; }});
  expect_runs_refused(spec, cases);
}

TEST(Refusal, QuickMerges) {
  float values[8] = {};
  MergeArgs args;
  args.num_partials = 2;
  args.num_rows = 1;
  args.dim = 2;
  args.partial_o = values;
  args.partial_lse = values;
  args.o = values + 4;
  ASSERT_TRUE(merge_partials(args, cpu_device(), nullptr).ok());
  MergeArgs bad = args;
  bad.num_partials = 0;
  expect_refused(merge_partials(bad, cpu_device(), nullptr), "num_partials", "0");
  bad = args;
  bad.num_rows = -1;
  expect_refused(merge_partials(bad, cpu_device(), nullptr), "num_rows", "-1");
  bad = args;
  bad.dim = 0;
  expect_refused(merge_partials(bad, cpu_device(), nullptr), "dim", "0");
  bad = args;
  bad.partial_lse = nullptr;
  expect_refused(merge_partials(bad, cpu_device(), nullptr), "partial_lse", "null");
}

}  // namespace
}  // namespace longdecode::testing
