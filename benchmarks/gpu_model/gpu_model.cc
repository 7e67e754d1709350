// The operations of a decode step around attention, each alone and as the graph of a chain of
// layers, beside a plain read of as many bytes and cuBLASLt (where libcublasLt is found):
// `gpu_model COMMIT OUT.json`. Exit status 77 without a device.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "benchmarks/gpu_model/layer_chain.h"
#include "benchmarks/gpu_timer/gpu_timer.h"
#include "cuda/model/gemm.h"
#include "ops/backends.h"

namespace longdecode::gpu_bench {
namespace {

using cuda::cuda_status;
using cuda::Gemm;
using cuda::LinearArgs;
using cuda::LinearOutput;

constexpr int32_t kChainLayers = 8;
constexpr int64_t kChainTokens = 16384;
constexpr int32_t kPrefillTokens = 2048;
constexpr int kReplays = 10;  // of a chain, in a row
constexpr int64_t kRateBytes = int64_t{1} << 30;
static_assert(int64_t{2} * kVocab * kHidden <= kRateBytes);

struct Product {
  const char* name;
  int64_t rows, cols;
  bool normalise;
  LinearOutput output;
};
constexpr Product kProducts[] = {
    {"qkv", kQkvRows, kHidden, true, LinearOutput::kStoreF32},
    {"o", kHidden, kQHeads* kHeadDim, false, LinearOutput::kAddF32},
    {"gate_up", 2 * kFfn, kHidden, true, LinearOutput::kSiluUpBf16},
    {"down", kHidden, kFfn, false, LinearOutput::kAddF32},
    {"head", kVocab, kHidden, true, LinearOutput::kStoreF32},
};

class Bench {
 public:
  Bench(const DeviceInfo& device, GpuTimer& timer, std::string commit)
      : device_(device), timer_(timer), commit_(std::move(commit)) {}

  Status products() {
    LD_ASSIGN_OR_RETURN(const auto gemm, Gemm::create(device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer weight, random_bf16(int64_t{kVocab} * kHidden, device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer x, random_bf16(int64_t{8} * kFfn, device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer x_f32,
                        upload(std::vector<float>(8 * kFfn, 0.5f), device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer y, zeros(int64_t{8} * 4 * kVocab, device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer scratch, zeros(gemm->workspace_bytes() + 16, device_));
    for (const Product& product : kProducts) {
      for (const int32_t tokens : {1, 8}) {
        LinearArgs args;
        args.weight = weight.as<uint16_t>();
        if (product.normalise) args.x_f32 = x_f32.as<float>();
        if (product.normalise) args.norm_weight = x_f32.as<float>();
        if (!product.normalise) args.x_bf16 = x.as<uint16_t>();
        args.output = product.output;
        args.y = y.as<void>();
        args.num_rows = product.rows;
        args.num_cols = product.cols;
        args.num_tokens = tokens;
        const int64_t bytes = 2 * product.rows * product.cols;
        LD_RETURN_IF_ERROR(measure(product.name, "own", tokens, bytes, [&](cudaStream_t stream) {
          return cuda::linear(args, device_, stream);
        }));
        const cuda::GemmArgs gemm_args{
            args.weight, x.as<uint16_t>(), nullptr,      LinearOutput::kStoreBf16,
            args.y,      product.rows,     product.cols, tokens};
        if (gemm->name() == "own kernel") continue;
        LD_RETURN_IF_ERROR(measure(
            product.name, gemm->name(), tokens, bytes,
            [&](cudaStream_t stream) { return gemm->run(gemm_args, scratch.as<void>(), stream); }));
      }
    }
    return {};
  }

  Status sampling() {
    constexpr int32_t kBatch = 8;
    std::vector<float> values(int64_t{kBatch} * kVocab);
    uint32_t state = 1;
    for (float& value : values) {  // sums of uniform numbers: bell-shaped, deviation 2
      value = 0.0f;
      for (int i = 0; i < 12; ++i) {
        state = state * 1664525u + 1013904223u;
        value += 2.0f * (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f);
      }
    }
    LD_ASSIGN_OR_RETURN(const DeviceBuffer logits, upload(values, device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer ids, zeros(64, device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer steps, zeros(64, device_));
    LD_ASSIGN_OR_RETURN(const DeviceBuffer seeds, zeros(64, device_));
    for (const int32_t batch : {1, kBatch}) {
      cuda::SampleArgs args;
      args.logits = logits.as<float>();
      args.batch = batch;
      args.vocab_size = kVocab;
      args.ids = ids.as<int32_t>();
      args.steps = steps.as<int32_t>();
      args.seeds = seeds.as<uint64_t>();
      const auto launch = [&](cudaStream_t stream) { return cuda::sample(args, device_, stream); };
      const int64_t bytes = int64_t{4} * kVocab * batch;
      LD_RETURN_IF_ERROR(measure("sample greedy", "own", batch, bytes, launch));
      args.temperature = 0.8f;
      LD_RETURN_IF_ERROR(measure("sample all", "own", batch, bytes, launch));
      args.top_k = 40;
      args.top_p = 0.95f;
      LD_RETURN_IF_ERROR(measure("sample k p", "own", batch, bytes, launch));
    }
    return {};
  }

  // A chunk of kPrefillTokens at the end of kv_len tokens: attention of one layer.
  Status prefill() {
    for (const KeyEncoding keys : {KeyEncoding::kPlain, KeyEncoding::kTwoPlane}) {
      for (const int64_t kv_len : {int64_t{kPrefillTokens}, kChainTokens}) {
        LD_ASSIGN_OR_RETURN(const auto chain, LayerChain::create(device_, 1, kv_len, keys));
        const int64_t heads_dim = int64_t{kQHeads} * kHeadDim;
        LD_ASSIGN_OR_RETURN(const DeviceBuffer q, random_bf16(kPrefillTokens * heads_dim, device_));
        LD_ASSIGN_OR_RETURN(const DeviceBuffer o, zeros(2 * kPrefillTokens * heads_dim, device_));
        PrefillArgs args;
        args.q =
            TensorView::contiguous(q.as<void>(), DType::kBF16, {kPrefillTokens, kQHeads, kHeadDim});
        args.o = args.q;
        args.o.data = o.as<void>();
        args.kv = chain->cache().layer(0);
        args.batch = chain->cache().step();
        args.softmax_scale = 0.088f;
        LD_ASSIGN_OR_RETURN(
            const GpuTimes times,
            timer_.measure(
                [&](cudaStream_t stream) { return prefill_attention(args, device_, stream); }, 5));
        const double pairs = static_cast<double>(kPrefillTokens) *
                             (static_cast<double>(kv_len) - 0.5 * kPrefillTokens);
        const double flops = 4.0 * pairs * static_cast<double>(heads_dim);
        const char* method = keys == KeyEncoding::kPlain ? "dense" : "two-plane";
        std::printf("prefill attention %s, kv_len %ld: %.1f us, %.0f TFLOP/s\n", method,
                    static_cast<long>(kv_len), times.graph_us, flops / times.graph_us * 1e-6);
        json_ += fmt::format(
            R"({}{{"op": "prefill attention", "kernel": "{}", "device": "{}", "commit": "{}", )"
            R"("tokens": {}, "kv_len": {}, "time_us": {:.3f}, "flop": {:.4g}}})",
            json_.empty() ? "" : ",\n", method, device_.name, commit_, kPrefillTokens, kv_len,
            times.graph_us, flops);
      }
    }
    return {};
  }

  // Steps of a chain of layers: no flush, since its weights are many times the L2.
  Status chain(KeyEncoding keys) {
    LD_ASSIGN_OR_RETURN(const auto chain,
                        LayerChain::create(device_, kChainLayers, kChainTokens, keys));
    const int64_t layer_bytes = kLayerBytes * kChainLayers;
    const int64_t kv_bytes = int64_t{2} * 2 * kKvHeads * kHeadDim * kChainTokens * kChainLayers;
    struct Variant {
      const char* name;
      LayerChain::Parts parts;
      int64_t bytes;
    };
    const int64_t read_kv = keys == KeyEncoding::kPlain ? kv_bytes : 0;
    for (const Variant& v :
         {Variant{"chain of products", LayerChain::Parts::kLinear, layer_bytes},
          Variant{"  with rope_append", LayerChain::Parts::kNoAttend, layer_bytes},
          Variant{"  with attention", LayerChain::Parts::kLayer, layer_bytes + read_kv},
          Variant{"  with head, sample", LayerChain::Parts::kStep,
                  layer_bytes + read_kv + int64_t{2} * kVocab * kHidden}}) {
      const char* method = keys == KeyEncoding::kPlain ? "dense" : "two-plane";
      const auto launch = [&] { return chain->launch(v.parts, timer_.stream()); };
      LD_RETURN_IF_ERROR(launch());  // loads the kernels
      LD_ASSIGN_OR_RETURN(const double us, warm_graph_us(launch, timer_.stream(), kReplays));
      add(v.name, method, 1, v.bytes, us, static_cast<double>(v.bytes) / read_gb_s_ * 1e-3);
    }
    return {};
  }

  // What a plain read of kRateBytes gets.
  Status read_rate() {
    LD_ASSIGN_OR_RETURN(const GpuTimes times, timer_.measure([&](cudaStream_t stream) {
      return timer_.read(kRateBytes, stream);
    }));
    read_gb_s_ = static_cast<double>(kRateBytes) / times.graph_us * 1e-3;
    std::printf("plain read of 1 GiB: %.0f GB/s\n", read_gb_s_);
    return {};
  }

  const std::string& json() const { return json_; }

 private:
  Status measure(const char* op, const std::string& kernel, int32_t tokens, int64_t bytes,
                 const Launch& launch) {
    LD_ASSIGN_OR_RETURN(const GpuTimes times, timer_.measure(launch, 5));
    LD_ASSIGN_OR_RETURN(
        const GpuTimes floor,
        timer_.measure([&](cudaStream_t stream) { return timer_.read(bytes, stream); }, 5));
    add(op, kernel, tokens, bytes, times.graph_us, floor.graph_us);
    return {};
  }

  void add(const char* op, const std::string& kernel, int32_t tokens, int64_t bytes, double us,
           double floor_us) {
    std::printf("%-20s %-18s tokens %d: %11ld bytes %9.2f us, plain read %9.2f, %5.1f%%\n", op,
                kernel.c_str(), tokens, static_cast<long>(bytes), us, floor_us,
                100.0 * floor_us / us);
    std::fflush(stdout);
    json_ += fmt::format(
        R"({}{{"op": "{}", "kernel": "{}", "device": "{}", "commit": "{}", "tokens": {}, )"
        R"("bytes": {}, "time_us": {:.3f}, "read_floor_us": {:.3f}}})",
        json_.empty() ? "" : ",\n", op, kernel, device_.name, commit_, tokens, bytes, us, floor_us);
  }

  DeviceInfo device_;
  GpuTimer& timer_;
  std::string commit_, json_;
  double read_gb_s_ = 1.0;
};

Status run(const DeviceInfo& device, const std::string& commit, const char* path) {
  LD_ASSIGN_OR_RETURN(const auto timer, GpuTimer::create(kDefaultFlushBytes, kRateBytes));
  Bench bench(device, *timer, commit);
  LD_RETURN_IF_ERROR(bench.read_rate());
  LD_RETURN_IF_ERROR(bench.products());
  LD_RETURN_IF_ERROR(bench.sampling());
  LD_RETURN_IF_ERROR(bench.chain(KeyEncoding::kPlain));
  LD_RETURN_IF_ERROR(bench.prefill());
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return make_status(StatusCode::kNotFound, "{} cannot be written", path);
  const std::string json = "[\n" + bench.json() + "\n]\n";
  const bool whole = std::fwrite(json.data(), 1, json.size(), file) == json.size();
  if (std::fclose(file) != 0 || !whole) {
    return make_status(StatusCode::kInternal, "{} could not be written whole", path);
  }
  return {};
}

int run_main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: gpu_model COMMIT OUT.json\n");
    return 1;
  }
  const auto device = detect_device(DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  const Status status = run(*device, argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "gpu_model: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace longdecode::gpu_bench

int main(int argc, char** argv) { return longdecode::gpu_bench::run_main(argc, argv); }
