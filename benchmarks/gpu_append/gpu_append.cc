// Appending a chunk of tokens to a GQA cache on the device, plain and two-plane (quantising every
// page that becomes due), beside a device-to-device copy of as many bytes: `gpu_append COMMIT
// OUT.json`. Exit status 77 without a device.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "benchmarks/gpu_timer/gpu_timer.h"
#include "cuda/host/status.h"
#include "longdecode/kv_cache.h"

namespace longdecode::gpu_bench {
namespace {

using cuda::cuda_status;

constexpr int32_t kHeads = 8;
constexpr int32_t kPageSize = 128;
constexpr int64_t kMaxTokens = 65536;

struct Shape {
  KeyEncoding keys;
  int32_t head_dim;
  int64_t tokens;
};

struct Chunk {
  void* data = nullptr;
  Chunk() = default;
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk() { cudaFree(data); }

  // bf16 numbers around 1 with random mantissas and signs.
  Status fill(int64_t num_bytes) {
    LD_RETURN_IF_ERROR(cuda_status(cudaMalloc(&data, num_bytes), "cudaMalloc"));
    std::vector<uint16_t> bits(num_bytes / 2);
    uint32_t state = 1;
    for (uint16_t& x : bits) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<uint16_t>((state >> 16 & 0x80ffu) | 0x3f00u);
    }
    return cuda_status(cudaMemcpy(data, bits.data(), num_bytes, cudaMemcpyDefault), "fill");
  }
};

Result<std::string> measure(const Shape& shape, const DeviceInfo& device, GpuTimer& timer,
                            const std::string& commit) {
  KvCacheDesc desc;
  desc.format = KvFormat::gqa(shape.keys, DType::kBF16, kHeads, shape.head_dim, kPageSize);
  desc.num_pages = shape.tokens / kPageSize + 1;
  desc.max_kv_len = shape.tokens + kPageSize;
  LD_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(desc, device));
  LD_ASSIGN_OR_RETURN(const SequenceId sequence, cache.add_sequence());
  // 8 tokens more, so that all full pages are due.
  const std::vector<SequenceId> sequences = {sequence};
  const std::vector<int32_t> new_tokens = {static_cast<int32_t>(shape.tokens) + kQuantizeLag};
  LD_RETURN_IF_ERROR(cache.reserve(sequences, new_tokens));
  const int64_t row_bytes = int64_t{kHeads} * shape.head_dim * 2;
  const int64_t chunk_bytes = new_tokens[0] * row_bytes;
  Chunk k, v, copy_from, copy_to;
  LD_RETURN_IF_ERROR(k.fill(chunk_bytes));
  LD_RETURN_IF_ERROR(v.fill(chunk_bytes));
  const auto view = [&](const Chunk& chunk) {
    return TensorView::contiguous(chunk.data, DType::kBF16,
                                  {1, new_tokens[0], kHeads, shape.head_dim});
  };
  const AppendArgs args{cache.layer(0), cache.step(), view(k), view(v)};
  LD_ASSIGN_OR_RETURN(const GpuTimes times, timer.measure([&](cudaStream_t stream) {
    return append_kv(args, device, stream);
  }));
  // Read once and written once.
  const int64_t bytes =
      2 * chunk_bytes + static_cast<int64_t>(desc.format.bytes_per_token() * shape.tokens);
  LD_RETURN_IF_ERROR(copy_from.fill(bytes / 2));
  LD_RETURN_IF_ERROR(copy_to.fill(bytes / 2));
  LD_ASSIGN_OR_RETURN(const GpuTimes copy, timer.measure([&](cudaStream_t stream) {
    return cuda_status(
        cudaMemcpyAsync(copy_to.data, copy_from.data, bytes / 2, cudaMemcpyDeviceToDevice, stream),
        "copy");
  }));
  const char* keys = shape.keys == KeyEncoding::kPlain ? "plain" : "two-plane";
  std::printf("%-9s head_dim %3d tokens %6ld: %8.2f us, copy of as many bytes %8.2f, %.1f%%\n",
              keys, shape.head_dim, static_cast<long>(shape.tokens), times.graph_us, copy.graph_us,
              100.0 * copy.graph_us / times.graph_us);
  std::fflush(stdout);
  return fmt::format(
      R"({{"op": "append", "keys": "{}", "device": "{}", "commit": "{}", "num_kv_heads": {}, )"
      R"("head_dim": {}, "page_size": {}, "dtype": "bf16", "tokens": {}, "timing": "graph", )"
      R"("l2": "cold", "time_us": {:.3f}, "bytes": {}, "copy_us": {:.3f}}})",
      keys, device.name, commit, kHeads, shape.head_dim, kPageSize, shape.tokens, times.graph_us,
      bytes, copy.graph_us);
}

Status run(const DeviceInfo& device, const std::string& commit, const char* path) {
  LD_ASSIGN_OR_RETURN(const auto timer, GpuTimer::create());
  std::string json = "[\n";
  for (const KeyEncoding keys : {KeyEncoding::kTwoPlane, KeyEncoding::kPlain}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      for (const int64_t tokens : {int64_t{4096}, kMaxTokens}) {
        LD_ASSIGN_OR_RETURN(const std::string row,
                            measure({keys, head_dim, tokens}, device, *timer, commit));
        json += (json.size() > 2 ? ",\n" : "") + row;
      }
    }
  }
  json += "\n]\n";
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return make_status(StatusCode::kNotFound, "{} cannot be written", path);
  const bool whole = std::fwrite(json.data(), 1, json.size(), file) == json.size();
  std::fclose(file);
  return whole ? Status() : make_status(StatusCode::kInternal, "{} is incomplete", path);
}

}  // namespace
}  // namespace longdecode::gpu_bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::printf("usage: gpu_append COMMIT OUT.json\n");
    return 1;
  }
  const auto device = longdecode::detect_device(longdecode::DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  const longdecode::Status status = longdecode::gpu_bench::run(*device, argv[1], argv[2]);
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
