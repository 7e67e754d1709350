// What the operations of cuda/model refuse before they touch a device: needs none.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/backend.h"
#include "cuda/kernels/gqa_prefill/prefill.h"
#include "cuda/model/gemm.h"
#include "tests/gpu/h200.h"

namespace longdecode {
namespace {

// A 16-byte aligned address that is not read.
template <typename T>
T* somewhere() {
  alignas(16) static unsigned char memory[16];
  return reinterpret_cast<T*>(memory);
}

cuda::LinearArgs linear_args() {
  cuda::LinearArgs args;
  args.weight = somewhere<uint16_t>();
  args.x_f32 = somewhere<float>();
  args.norm_weight = somewhere<float>();
  args.y = somewhere<float>();
  args.num_rows = 32;
  args.num_cols = 64;
  return args;
}

// The message holds every one of the words.
void expect_refused(const Status& status, StatusCode code,
                    std::initializer_list<const char*> words) {
  EXPECT_EQ(status.code(), code);
  for (const char* word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
}

TEST(CudaModelRefusal, OtherGpusThanHopper) {
  for (const int32_t capability : {80, 89, 100}) {
    DeviceInfo device = h200();
    device.compute_capability = capability;
    const std::string value = "compute_capability is " + std::to_string(capability);
    for (const Status& status :
         {cuda::check_model_device(device), cuda::linear(linear_args(), device, nullptr)}) {
      expect_refused(status, StatusCode::kUnsupported, {value.c_str(), "sm_90a (90)"});
    }
  }
  EXPECT_TRUE(cuda::check_model_device(h200()).ok());
}

TEST(CudaModelRefusal, Linear) {
  const auto refused = [](auto change, StatusCode code, std::initializer_list<const char*> words) {
    cuda::LinearArgs args = linear_args();
    change(args);
    expect_refused(cuda::linear(args, h200(), nullptr), code, words);
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  refused([](auto& a) { a.num_cols = 12; }, kInvalid, {"num_cols", "12", "multiple of 8"});
  refused([](auto& a) { a.num_tokens = 9; }, kInvalid, {"num_tokens", "9", "8"});
  refused([](auto& a) { a.num_tokens = 0; }, kInvalid, {"num_tokens", "0"});
  refused([](auto& a) { a.num_rows = 0; }, kInvalid, {"num_rows", "0"});
  refused([](auto& a) { a.weight = nullptr; }, kInvalid, {"weight", "null"});
  refused([](auto& a) { a.weight += 1; }, kInvalid, {"weight", "16"});
  refused([](auto& a) { a.norm_weight = nullptr; }, kInvalid, {"norm_weight"});
  refused([](auto& a) { a.x_bf16 = a.weight; }, kInvalid, {"x_bf16", "x_f32"});
  refused([](auto& a) { a.x_f32 = nullptr; }, kInvalid, {"x_bf16", "x_f32"});
  refused(
      [](auto& a) {
        a.output = cuda::LinearOutput::kSiluUpBf16;
        a.num_rows = 24;
      },
      kInvalid, {"num_rows", "24", "16"});
  refused([](auto& a) { a.num_cols = 1 << 16; }, StatusCode::kUnsupported, {"65536", "61440"});
}

TEST(CudaModelRefusal, Rope) {
  const auto refused = [](auto change, StatusCode code, std::initializer_list<const char*> words) {
    cuda::RopeAppendArgs args;
    args.model.num_q_heads = 4;
    args.model.num_kv_heads = 2;
    args.model.head_dim = args.model.rope_dim = 64;
    args.model.frequencies = somewhere<double>();
    args.batch.batch = 1;
    args.batch.kv_lens = args.batch.block_table = args.batch.slots = somewhere<int32_t>();
    args.query_len = 1;
    args.qkv = somewhere<float>();
    args.q = somewhere<uint16_t>();
    args.kv.format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 2, 64, 64);
    change(args);
    expect_refused(cuda::rope_append(args, h200(), nullptr), code, words);
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  refused([](auto& a) { a.model.head_dim = 264; }, kInvalid, {"head_dim", "264", "256"});
  refused([](auto& a) { a.model.rope_dim = 63; }, kInvalid, {"rope_dim", "63", "even"});
  refused([](auto& a) { a.model.rope_dim = 66; }, kInvalid, {"rope_dim", "66", "64"});
  refused([](auto& a) { a.query_len = 9; }, kInvalid, {"query_len", "9", "8"});
  refused([](auto& a) { a.batch.kv_lens = nullptr; }, kInvalid, {"kv_lens"});
  refused([](auto& a) { a.batch.slots = nullptr; }, kInvalid, {"slots"});
  refused([](auto& a) { a.kv.format.num_kv_heads = 3; }, kInvalid, {"3", "2"});
  refused([](auto& a) { a.kv.format.dtype = DType::kF16; }, StatusCode::kUnsupported, {"bf16"});
}

TEST(CudaModelRefusal, Sample) {
  const auto refused = [](auto change, std::initializer_list<const char*> words) {
    cuda::SampleArgs args;
    args.logits = somewhere<float>();
    args.batch = 1;
    args.vocab_size = 100;
    args.ids = args.steps = somewhere<int32_t>();
    change(args);
    expect_refused(cuda::sample(args, h200(), nullptr), StatusCode::kInvalidArgument, words);
  };
  refused([](auto& a) { a.vocab_size = 400001; }, {"vocab_size", "400001", "400000"});
  refused([](auto& a) { a.temperature = -1.0f; }, {"temperature", "-1"});
  refused([](auto& a) { a.temperature = NAN; }, {"temperature", "nan"});
  refused([](auto& a) { a.top_p = 1.5f; }, {"top_p", "1.5"});
  refused([](auto& a) { a.top_k = -1; }, {"top_k", "-1"});
  refused([](auto& a) { a.batch = 0; }, {"batch", "0"});
  refused([](auto& a) { a.ids = nullptr; }, {"ids"});
  refused([](auto& a) { a.history = a.ids; }, {"history_steps", "0", "1"});
  refused([](auto& a) { a.temperature = 1.0f; }, {"seeds", "null"});
}

TEST(CudaModelRefusal, Rows) {
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  expect_refused(
      cuda::embed({somewhere<int32_t>(), somewhere<uint16_t>(), somewhere<float>(), 1, 10, 12},
                  h200(), nullptr),
      kInvalid, {"hidden_dim", "12"});
  expect_refused(cuda::rms_norm({somewhere<float>(), nullptr, 0.0f, somewhere<uint16_t>(), 1, 16},
                                h200(), nullptr),
                 kInvalid, {"weight"});
  expect_refused(
      cuda::silu_up({somewhere<uint16_t>(), somewhere<uint16_t>(), 0, 16}, h200(), nullptr),
      kInvalid, {"num_tokens", "0"});
}

TEST(CudaModelRefusal, Gemm) {
  const auto refused = [](auto change, std::initializer_list<const char*> words) {
    cuda::GemmArgs args;
    args.weight = args.x = somewhere<uint16_t>();
    args.y = somewhere<float>();
    args.num_rows = args.num_cols = args.num_tokens = 16;
    change(args);
    expect_refused(cuda::validate(args), StatusCode::kInvalidArgument, words);
  };
  refused([](auto& a) { a.num_cols = 4; }, {"num_cols", "4"});
  refused([](auto& a) { a.num_tokens = 0; }, {"num_tokens", "0"});
  refused([](auto& a) { a.output = cuda::LinearOutput::kSiluUpBf16; }, {"kSiluUpBf16"});
  refused(
      [](auto& a) {
        a.bias = somewhere<float>();
        a.output = cuda::LinearOutput::kAddF32;
      },
      {"bias"});
}

TEST(CudaModelRefusal, Prefill) {
  PrefillArgs args;
  args.kv.format = KvFormat::gqa(KeyEncoding::kPlain, DType::kF16, 2, 64, 64);
  args.q = args.o = TensorView::contiguous(somewhere<uint16_t>(), DType::kBF16, {1, 4, 64});
  args.softmax_scale = 1.0f;
  args.soft_cap = 3.0f;
  args.sliding_window = 7;
  expect_refused(cuda::prefill_gqa(args, h200(), nullptr), StatusCode::kUnsupported,
                 {"dtypes", "soft_cap is 3", "sliding_window is 7"});
}

}  // namespace
}  // namespace longdecode
