// What a model's user reads where the CUDA runtime says no: one line each, and --device auto goes
// on on the CPU. The runtime's answers are the test's own (the linker wraps its functions), so this
// runs on any machine.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "longdecode/attention.h"
#include "runner/model/session.h"
#include "tests/support/tiny_llama.h"
#include "tools/longdecode/open_session.h"

namespace {

struct Answers {
  cudaError_t count = cudaSuccess;  // of cudaGetDeviceCount
  int num_devices = 1;
  int driver_version = CUDART_VERSION;
  int compute_capability = 90;
  size_t free_bytes = 0;  // less than any allocation
  int num_allocations = 0;
};
Answers g_answers;

}  // namespace

extern "C" {

cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  *count = g_answers.num_devices;
  return g_answers.count;
}
cudaError_t __wrap_cudaDriverGetVersion(int* version) {
  *version = g_answers.driver_version;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "a GPU");
  properties->totalGlobalMem = size_t{80} << 30;
  properties->major = g_answers.compute_capability / 10;
  properties->minor = g_answers.compute_capability % 10;
  properties->multiProcessorCount = 100;
  properties->sharedMemPerBlockOptin = 232448;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetLastError() { return cudaSuccess; }
cudaError_t __wrap_cudaMalloc(void** memory, size_t) {
  *memory = nullptr;
  ++g_answers.num_allocations;
  return cudaErrorMemoryAllocation;
}
cudaError_t __wrap_cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = g_answers.free_bytes;
  *total_bytes = size_t{80} << 30;
  return cudaSuccess;
}
}

namespace longdecode::tool {
namespace {

class RuntimeAnswers : public ::testing::Test {
 protected:
  void SetUp() override { g_answers = {}; }

  static std::shared_ptr<const runner::Model> model() {
    auto file = runner::GgufFile::from_bytes(tests::TinyLlama().writer().finish(), "tiny");
    return runner::Model::from_file(std::move(file).value()).value();
  }

  // What --device cuda refuses with. --device auto runs on the CPU, and says the same.
  static void expect(StatusCode code, const std::string& message, Method method = Method::kDense,
                     const BatchRoom& room = {}) {
    SessionFlags flags;
    flags.num_threads = 1;
    flags.device = "cuda";
    const auto refused = open_session(model(), flags, method, 1000, false, room);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), code);
    EXPECT_EQ(refused.status().message(), message);

    flags.device = "auto";
    ::testing::internal::CaptureStderr();
    const auto session = open_session(model(), flags, method, 1000, false, room);
    static std::string said;  // a reason is given once
    EXPECT_EQ(::testing::internal::GetCapturedStderr(),
              message == said ? "" : "longdecode: note: on the CPU, because " + message + "\n");
    said = message;
    ASSERT_TRUE(session.ok()) << session.status().message();
    EXPECT_EQ(session->options().device.type, DeviceType::kCpu);
    EXPECT_EQ(session->options().max_batch, 1);
    EXPECT_EQ(session->options().kv_dtype, DType::kF16);
  }
};

TEST_F(RuntimeAnswers, NoDriver) {
  g_answers.count = cudaErrorInsufficientDriver;
  g_answers.driver_version = 0;
  expect(StatusCode::kUnavailable, "no CUDA device: there is no NVIDIA driver (libcuda.so.1)");
}

TEST_F(RuntimeAnswers, OldDriver) {
  g_answers.count = cudaErrorInsufficientDriver;
  g_answers.driver_version = 12040;
  expect(StatusCode::kUnavailable,
         fmt::format("no CUDA device: the NVIDIA driver is for CUDA 12.4; this build needs one for "
                     "{}.{} or later",
                     CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
}

TEST_F(RuntimeAnswers, NoDevice) {
  g_answers.num_devices = 0;
  expect(StatusCode::kUnavailable, "device_idx is 0; this machine has 0 CUDA devices");
}

TEST_F(RuntimeAnswers, UnsupportedGpu) {
  for (const auto& [capability, text] : {std::pair(75, "75"), {80, "80"}, {120, "120"}}) {
    g_answers.compute_capability = capability;
    for (const Method method : {Method::kDense, Method::kFfd}) {
      expect(StatusCode::kUnsupported,
             fmt::format("models on CUDA: compute_capability is {}; their kernels are for sm_90a "
                         "(90)",
                         text),
             method);
    }
  }
  EXPECT_EQ(g_answers.num_allocations, 0);  // it is known before
}

TEST_F(RuntimeAnswers, OutOfMemory) {
  g_answers.free_bytes = 1000;
  // A layer's plain pages: 8 of 128 tokens, K and V of one head of 64 in bf16.
  const std::string rest = fmt::format(
      " bytes of GPU memory are needed at once; 1000 of {} are free", int64_t{80} << 30);
  expect(StatusCode::kOutOfMemory, std::to_string(8 * 128 * 2 * 64 * 2) + rest);
  // The two longest of three sequences: 3 and 2 pages.
  const BatchRoom room = {2, {129, 300, 100}};
  expect(StatusCode::kOutOfMemory,
         std::to_string(5 * 128 * 2 * 64 * 2) + rest + "; a --parallel below 2 needs less",
         Method::kDense, room);
}

}  // namespace
}  // namespace longdecode::tool
