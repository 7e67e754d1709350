// GQA caches on the device beside the same ones on the CPU: after every step the bytes of V, of the
// keys (plain, or both planes and the ring) must be equal: `gqa_cache_test [quick]`. Exit status 77
// (skipped) where there is no device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/float_convert.h"
#include "longdecode/kv_cache.h"
#include "tests/gpu/mla_workload.h"
#include "tests/gpu/side_memory.h"

namespace longdecode::gpu_test {
namespace {

constexpr int32_t kHeads = 3;
constexpr int32_t kMaxSequences = 5;
constexpr int64_t kMaxKvLen = 1500;

class Side {
 public:
  Side(const DeviceInfo& device, const KvFormat& format) : device_(device), format_(format) {
    KvCacheDesc desc;
    desc.format = format;
    desc.num_pages = 4 * kMaxKvLen / format.page_size;
    desc.max_sequences = kMaxSequences;
    desc.max_kv_len = kMaxKvLen;
    auto cache = KvCache::create(desc, device);
    check_status(cache.status(), "KvCache::create");
    cache_ = std::make_unique<KvCache>(std::move(cache).value());
  }

  KvCache& cache() { return *cache_; }

  void append(const std::vector<int32_t>& sequences, const std::vector<int32_t>& new_tokens,
              const std::vector<uint8_t>& k, const std::vector<uint8_t>& v, DType dtype,
              int64_t width) {
    check_status(cache_->reserve(sequences, new_tokens), "reserve");
    const SideMemory k_memory(k, on_host()), v_memory(v, on_host());
    const auto batch = static_cast<int64_t>(sequences.size());
    const auto view = [&](const SideMemory& memory) {
      return TensorView::contiguous(memory.data(), dtype, {batch, width, kHeads, format_.key_dim});
    };
    check_status(cache_->append(0, view(k_memory), view(v_memory), nullptr), "append");
    check_cuda(cudaDeviceSynchronize(), "append");
  }

  // Token-major pools of `num_pages` pages, imported by `table`.
  void import(SequenceId sequence, const std::vector<uint8_t>& k, const std::vector<uint8_t>& v,
              DType dtype, int64_t page_size, const std::vector<int32_t>& table, int64_t kv_len) {
    const SideMemory k_memory(k, on_host()), v_memory(v, on_host());
    const auto num_pages = static_cast<int64_t>(table.size());
    const auto view = [&](const SideMemory& memory) {
      TensorView pool = TensorView::contiguous(memory.data(), dtype,
                                               {num_pages, kHeads, page_size, format_.key_dim});
      pool.stride[1] = format_.key_dim;
      pool.stride[2] = int64_t{kHeads} * format_.key_dim;
      return pool;
    };
    const PagedKv layers[] = {{view(k_memory), view(v_memory)}};
    check_status(cache_->import_dense(sequence, layers, table, kv_len, nullptr), "import_dense");
    check_cuda(cudaDeviceSynchronize(), "import_dense");
  }

  // Everything that the reserved step's sequences own, in a fixed order.
  std::vector<uint8_t> owned_bytes() const {
    const BatchView& step = cache_->step();
    const KvLayerView layer = cache_->layer(0);
    const auto kv_lens = fetch<int32_t>(step.kv_lens, step.batch);
    const auto slots = fetch<int32_t>(step.slots, step.batch);
    const auto table = fetch<int32_t>(step.block_table, step.batch * step.block_table_stride);
    const Rows v(layer.v), k(layer.k), ring(layer.recent_k);
    std::vector<uint8_t> chunks, residuals;
    if (layer.chunks != nullptr) {
      chunks = fetch<uint8_t>(layer.chunks, layer.num_pages * layer.chunk_page_stride_bytes);
      residuals =
          fetch<uint8_t>(layer.residuals, layer.num_pages * layer.residual_page_stride_bytes);
    }
    std::vector<uint8_t> bytes;
    for (int32_t b = 0; b < step.batch; ++b) {
      const int32_t* pages = table.data() + b * step.block_table_stride;
      for (int32_t head = 0; head < kHeads; ++head) {
        for (int64_t token = 0; token < kv_lens[b]; ++token) {
          const int64_t page = pages[token / format_.page_size];
          v.take(page, head, token % format_.page_size, &bytes);
          k.take(page, head, token % format_.page_size, &bytes);
        }
        const int64_t num_pages =
            chunks.empty() ? pages_of(kv_lens[b]) : format_.num_quantized_pages(kv_lens[b]);
        for (int64_t i = 0; i < num_pages && !chunks.empty(); ++i) {
          const auto chunk = chunks.begin() + pages[i] * layer.chunk_page_stride_bytes +
                             head * format_.chunk_bytes();
          bytes.insert(bytes.end(), chunk, chunk + format_.chunk_bytes());
          const auto residual = residuals.begin() + pages[i] * layer.residual_page_stride_bytes +
                                head * format_.residual_bytes();
          bytes.insert(bytes.end(), residual, residual + format_.residual_bytes());
        }
        for (int64_t t = num_pages * format_.page_size; t < kv_lens[b]; ++t) {
          ring.take(slots[b], head, t % format_.recent_ring_tokens(), &bytes);
        }
      }
    }
    return bytes;
  }

 private:
  template <typename T>
  static std::vector<T> fetch(const void* from, int64_t count) {
    std::vector<T> values(count);
    check_cuda(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDefault), "fetch");
    return values;
  }

  // A contiguous pool (or ring) on the host; without data nothing is taken.
  class Rows {
   public:
    explicit Rows(const TensorView& view) : view_(view) {
      if (view.data == nullptr) return;
      row_bytes_ = view.shape[3] * dtype_bytes(view.dtype);
      bytes_ =
          fetch<uint8_t>(view.data, view.shape[0] * view.shape[1] * view.shape[2] * row_bytes_);
    }
    void take(int64_t i, int64_t head, int64_t row, std::vector<uint8_t>* to) const {
      if (bytes_.empty()) return;
      const int64_t index = (i * view_.shape[1] + head) * view_.shape[2] + row;
      const auto begin = bytes_.begin() + index * row_bytes_;
      to->insert(to->end(), begin, begin + row_bytes_);
    }

   private:
    TensorView view_;
    int64_t row_bytes_ = 0;
    std::vector<uint8_t> bytes_;
  };

  bool on_host() const { return device_.type == DeviceType::kCpu; }
  int64_t pages_of(int64_t tokens) const {
    return (tokens + format_.page_size - 1) / format_.page_size;
  }

  DeviceInfo device_;
  KvFormat format_;
  std::unique_ptr<KvCache> cache_;
};

// Normal numbers with the channels' own offsets and scales; `wild`: with infinities, NaN, constant
// and subnormal channels too.
std::vector<uint8_t> random_rows(int64_t rows, int32_t dim, DType dtype, bool wild,
                                 std::mt19937& rng) {
  // Nearly normal; the library's normal distribution would take most of the test's time.
  const auto normal = [](std::mt19937& random) {
    const uint32_t a = random(), b = random();
    const auto sum = static_cast<int32_t>((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));
    return static_cast<float>(sum - 131070) * (1.0f / 37837.0f);
  };
  std::vector<uint8_t> bytes(rows * dim * dtype_bytes(dtype));
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t c = 0; c < dim; ++c) {
      float x = normal(rng) * std::ldexp(1.0f, c % 7 - 3) + static_cast<float>(c % 5 * 40);
      if (c % 16 == 3) x = 2.5f;
      if (c % 16 == 5) x = 0.0f;
      if (wild && c % 16 == 7) x = 1e30f * normal(rng);
      if (wild && c % 16 == 9) x = 1e-39f * normal(rng);
      if (wild && rng() % 5000 == 0) x = std::numeric_limits<float>::infinity();
      if (wild && rng() % 5000 == 0) x = std::numeric_limits<float>::quiet_NaN();
      store_element(bytes.data(), dtype, row * dim + c, x);
    }
  }
  return bytes;
}

std::string compare(const Side& gpu, const Side& cpu) {
  const std::vector<uint8_t> a = gpu.owned_bytes(), b = cpu.owned_bytes();
  if (a.size() != b.size()) return "sizes differ";
  const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first;
  if (at == a.end()) return "";
  return fmt::format("byte {} of {} is {:#x}, on the CPU {:#x}", at - a.begin(), a.size(), *at,
                     b[at - a.begin()]);
}

// Prefill, single tokens, a fork, truncations and an import: the first difference, or nothing.
std::string converse(const DeviceInfo& gpu, const DeviceInfo& cpu, const KvFormat& format,
                     DType input, bool wild) {
  std::mt19937 rng(7);
  Side sides[] = {Side(gpu, format), Side(cpu, format)};
  std::vector<int32_t> sequences;
  const auto add = [&](const auto& make) {
    for (Side& side : sides) {
      const Result<SequenceId> sequence = make(side.cache());
      check_status(sequence.status(), "sequence");
      if (&side == sides) sequences.push_back(*sequence);
    }
  };
  for (int i = 0; i < 3; ++i) add([](KvCache& cache) { return cache.add_sequence(); });
  const int32_t page = format.page_size;
  // Past a page by 7, 8 and 9 tokens; many pages at once; 1 to 8 tokens.
  const std::vector<std::vector<int32_t>> steps = {{page + 7, 300, 1}, {1, 0, page + 8}, {8, 1, 1},
                                                   {1, 7, 2 * page},   {3, 1, 1},        {2, 5, 4},
                                                   {400, 8, page},     {1, 1, 1}};
  for (size_t step = 0; step < steps.size(); ++step) {
    std::vector<int32_t> new_tokens = steps[step];
    new_tokens.resize(sequences.size(), 6);
    const int64_t width = *std::max_element(new_tokens.begin(), new_tokens.end());
    const auto rows = static_cast<int64_t>(sequences.size()) * width * kHeads;
    const auto k = random_rows(rows, format.key_dim, input, wild, rng);
    const auto v = random_rows(rows, format.key_dim, input, wild, rng);
    for (Side& side : sides) side.append(sequences, new_tokens, k, v, input, width);
    const std::string fault = compare(sides[0], sides[1]);
    if (!fault.empty()) return fmt::format("step {}: {}", step, fault);
    for (Side& side : sides) check_status(side.cache().commit(), "commit");
    if (step == 2) add([&](KvCache& cache) { return cache.fork(sequences[0]); });
    if (step == 4) {
      for (Side& side : sides) check_status(side.cache().truncate(sequences[1], 8), "truncate");
    }
  }
  add([](KvCache& cache) { return cache.add_sequence(); });
  const std::vector<int32_t> table = {3, 0, 1, 2, 5, 4};
  const auto k = random_rows(6 * 100 * kHeads, format.key_dim, input, wild, rng);
  const auto v = random_rows(6 * 100 * kHeads, format.key_dim, input, wild, rng);
  for (Side& side : sides) {
    side.import(sequences.back(), k, v, input, 100, table, 577);
    check_status(side.cache().reserve(sequences, std::vector<int32_t>(sequences.size(), 0)),
                 "reserve");
  }
  const std::string fault = compare(sides[0], sides[1]);
  return fault.empty() ? "" : "import: " + fault;
}

// quick: few formats, for compute-sanitizer.
int run_all(bool quick) {
  const auto gpu = detect_device(DeviceType::kCuda);
  if (!gpu.ok()) {
    std::printf("skipped: %s\n", gpu.status().message().c_str());
    return 77;
  }
  const auto cpu = detect_device(DeviceType::kCpu);
  check_status(cpu.status(), "detect_device");
  int passed = 0, failed = 0;
  for (const auto keys : {KeyEncoding::kTwoPlane, KeyEncoding::kPlain}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int32_t head_dim : {64, 80, 96, 128, 256}) {
        for (const int32_t page_size : {64, 128}) {
          const bool is_quick =
              dtype == DType::kBF16 && page_size == 128 && (head_dim == 96 || head_dim == 256);
          if (quick && !is_quick) continue;
          const int32_t number = passed + failed;
          const DType input = number % 3 == 0   ? DType::kF32
                              : number % 3 == 1 ? DType::kF16
                                                : DType::kBF16;
          const KvFormat format = KvFormat::gqa(keys, dtype, kHeads, head_dim, page_size);
          for (const bool wild : {false, true}) {
            const std::string fault = converse(*gpu, *cpu, format, input, wild);
            ++(fault.empty() ? passed : failed);
            if (fault.empty()) continue;
            std::printf("FAILED %s, dtype %d, input %d, head_dim %d, page %d%s: %s\n",
                        keys == KeyEncoding::kPlain ? "plain" : "two-plane",
                        static_cast<int>(dtype), static_cast<int>(input), head_dim, page_size,
                        wild ? ", wild" : "", fault.c_str());
          }
          std::fflush(stdout);
        }
      }
    }
    std::printf("%s: %d passed, %d failed so far\n",
                keys == KeyEncoding::kPlain ? "plain" : "two-plane", passed, failed);
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longdecode::gpu_test

int main(int argc, char** argv) {
  return longdecode::gpu_test::run_all(argc > 1 && std::strcmp(argv[1], "quick") == 0);
}
