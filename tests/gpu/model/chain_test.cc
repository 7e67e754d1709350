// Launches that overlap (programmatic dependent launch) give what they give one by one, enqueued
// and as a CUDA Graph.
#include <gtest/gtest.h>

#include <numeric>

#include "cuda/model/model_ops.h"
#include "tests/gpu/model/arrays.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;
using gpu_test::check_status;

constexpr int32_t kHidden = 1024, kFfn = 2048, kVocab = 5000, kLayers = 4;

// A model without attention: ids -> embed -> layers -> logits -> sample -> ids.
class Chain {
 public:
  explicit Chain(int32_t tokens)
      : tokens_(tokens),
        ids_(std::vector<int32_t>(size_t(tokens), 1)),
        steps_(std::vector<int32_t>(size_t(tokens), 0)),
        seeds_(distinct_seeds(tokens)),
        x_(int64_t{tokens} * kHidden),
        act_(int64_t{tokens} * kFfn),
        logits_(int64_t{tokens} * kVocab) {}

  static std::vector<uint64_t> distinct_seeds(int32_t count) {
    std::vector<uint64_t> seeds(size_t(count), 5);
    std::iota(seeds.begin(), seeds.end(), 5);
    return seeds;
  }

  // One step. `after` is called after every launch.
  template <class After>
  void step(cudaStream_t stream, const After& after) {
    const auto run = [&](const Status& status) {
      check_status(status, "chain");
      after();
    };
    run(cuda::embed({ids_.data(), embedding_.data(), x_.data(), tokens_, kVocab, kHidden}, device_,
                    stream));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      run(cuda::linear(normed(gate_up_.data() + int64_t{layer} * 2 * kFfn * kHidden, 2 * kFfn,
                              cuda::LinearOutput::kSiluUpBf16, act_.data()),
                       device_, stream));
      cuda::LinearArgs down;
      down.weight = down_.data() + int64_t{layer} * kFfn * kHidden;
      down.x_bf16 = act_.data();
      down.output = cuda::LinearOutput::kAddF32;
      down.y = x_.data();
      down.num_rows = kHidden;
      down.num_cols = kFfn;
      down.num_tokens = tokens_;
      run(cuda::linear(down, device_, stream));
    }
    run(cuda::linear(
        normed(embedding_.data(), kVocab, cuda::LinearOutput::kStoreF32, logits_.data()), device_,
        stream));
    cuda::SampleArgs sample;
    sample.logits = logits_.data();
    sample.batch = tokens_;
    sample.vocab_size = kVocab;
    sample.temperature = 1.0f;
    sample.top_k = 40;
    sample.seeds = seeds_.data();
    sample.ids = ids_.data();
    sample.steps = steps_.data();
    run(cuda::sample(sample, device_, stream));
  }

  std::vector<float> logits() const { return logits_.get(); }
  std::vector<int32_t> ids() const { return ids_.get(); }

 private:
  cuda::LinearArgs normed(const uint16_t* weight, int64_t rows, cuda::LinearOutput output,
                          void* y) const {
    cuda::LinearArgs args;
    args.weight = weight;
    args.x_f32 = x_.data();
    args.norm_weight = norm_.data();
    args.norm_eps = 1e-5f;
    args.output = output;
    args.y = y;
    args.num_rows = rows;
    args.num_cols = kHidden;
    args.num_tokens = tokens_;
    return args;
  }

  DeviceInfo device_ = cuda_device();
  int32_t tokens_;
  DeviceArray<uint16_t> embedding_{to_bf16(normal_floats(int64_t{kVocab} * kHidden, 1.0f, 1))};
  DeviceArray<uint16_t> gate_up_{
      to_bf16(normal_floats(int64_t{kLayers} * 2 * kFfn * kHidden, 0.03f, 2))};
  DeviceArray<uint16_t> down_{to_bf16(normal_floats(int64_t{kLayers} * kFfn * kHidden, 0.03f, 3))};
  DeviceArray<float> norm_{normal_floats(kHidden, 1.0f, 4)};
  DeviceArray<int32_t> ids_, steps_;
  DeviceArray<uint64_t> seeds_;
  DeviceArray<float> x_;
  DeviceArray<uint16_t> act_;
  DeviceArray<float> logits_;
};

TEST(CudaModelChain, OverlappingLaunches) {
  constexpr int kSteps = 50;
  for (const int32_t tokens : {1, 3, 8}) {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreate(&stream), "stream");
    Chain one_by_one(tokens), enqueued(tokens), replayed(tokens);
    for (int i = 0; i < kSteps; ++i) {
      one_by_one.step(stream, [&] { check_cuda(cudaStreamSynchronize(stream), "launch"); });
      enqueued.step(stream, [] {});
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    replayed.step(stream, [] {});
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    for (int i = 0; i < kSteps; ++i) check_cuda(cudaGraphLaunch(executable, stream), "replay");
    check_cuda(cudaStreamSynchronize(stream), "replay");
    EXPECT_EQ(enqueued.ids(), one_by_one.ids());
    EXPECT_EQ(replayed.ids(), one_by_one.ids());
    EXPECT_EQ(enqueued.logits(), one_by_one.logits());
    EXPECT_EQ(replayed.logits(), one_by_one.logits());
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

}  // namespace
}  // namespace longdecode::testing
