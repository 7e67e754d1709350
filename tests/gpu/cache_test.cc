// An MLA conversation through KvCache on the device beside the same one on the CPU, and the public
// merge: every step's output must agree. Exit status 77 (skipped) where there is no device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "base/float_convert.h"
#include "longdecode/longdecode.h"
#include "tests/gpu/mla_workload.h"
#include "tests/gpu/side_memory.h"

namespace longdecode::gpu_test {
namespace {

constexpr int32_t kHeads = 16;
constexpr int32_t kQueryLen = 2;
constexpr int32_t kMaxSequences = 4;
constexpr int64_t kMaxKvLen = 1024;

// A cache and a plan on one device; host arrays go through device buffers.
class Side {
 public:
  Side(const DeviceInfo& device, DType dtype, int32_t page_size) : device_(device) {
    KvCacheDesc cache_desc;
    cache_desc.format = KvFormat::mla(dtype, page_size);
    cache_desc.num_pages = 4 * kMaxKvLen / page_size;
    cache_desc.max_sequences = kMaxSequences;
    cache_desc.max_kv_len = kMaxKvLen;
    auto cache = KvCache::create(cache_desc, device);
    check_status(cache.status(), "KvCache::create");
    cache_ = std::make_unique<KvCache>(std::move(cache).value());
    DecodeDesc desc;
    desc.format = cache_desc.format;
    desc.q_dtype = dtype;
    desc.num_q_heads = kHeads;
    desc.max_batch = kMaxSequences;
    desc.max_query_len = kQueryLen;
    desc.max_kv_len = kMaxKvLen;
    desc.softmax_scale = 0.05f;
    auto plan = DecodePlan::create(desc, device);
    check_status(plan.status(), "DecodePlan::create");
    plan_ = std::make_unique<DecodePlan>(std::move(plan).value());
    workspace_ = upload(std::vector<uint8_t>(plan_->workspace_bytes(), 0xff));
    check_status(plan_->init(workspace_->data(), nullptr), "init");
  }

  KvCache& cache() { return *cache_; }

  void append(const std::vector<int32_t>& sequences, const std::vector<int32_t>& new_tokens,
              const std::vector<uint8_t>& keys, DType dtype, int64_t width) {
    check_status(cache_->reserve(sequences, new_tokens), "reserve");
    const auto memory = upload(keys);
    const auto batch = static_cast<int64_t>(sequences.size());
    const TensorView k =
        TensorView::contiguous(memory->data(), dtype, {batch, width, 1, kMlaKeyDim});
    check_status(cache_->append(0, k, {}, nullptr), "append");
    check_cuda(cudaDeviceSynchronize(), "append");
  }

  // Attends with the reserved step; the result as fp32.
  std::vector<float> decode(const std::vector<uint8_t>& queries, DType dtype) {
    const int64_t batch = cache_->step().batch;
    const auto q = upload(queries);
    const int64_t out_count = batch * kQueryLen * kHeads * kMlaValueDim;
    const auto o = upload(std::vector<uint8_t>(2 * out_count, 0xff));
    DecodeArgs args;
    args.query_len = kQueryLen;
    args.q = TensorView::contiguous(q->data(), dtype, {batch, kQueryLen, kHeads, kMlaKeyDim});
    args.o = TensorView::contiguous(o->data(), dtype, {batch, kQueryLen, kHeads, kMlaValueDim});
    args.kv = cache_->layer(0);
    args.batch = cache_->step();
    args.batch.query_lens = nullptr;
    check_status(plan_->run(args, nullptr), "run");
    std::vector<uint16_t> bits(out_count);
    check_cuda(cudaMemcpy(bits.data(), o->data(), 2 * out_count, cudaMemcpyDefault), "fetch");
    std::vector<float> values(out_count);
    for (int64_t i = 0; i < out_count; ++i) values[i] = load_element(bits.data(), dtype, i);
    return values;
  }

 private:
  std::unique_ptr<SideMemory> upload(const std::vector<uint8_t>& bytes) const {
    return std::make_unique<SideMemory>(bytes, device_.type == DeviceType::kCpu);
  }

  DeviceInfo device_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<DecodePlan> plan_;
  std::unique_ptr<SideMemory> workspace_;
};

std::vector<uint8_t> random_values(int64_t count, DType dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<uint8_t> bytes(count * dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) store_element(bytes.data(), dtype, i, normal(rng));
  return bytes;
}

// The largest difference over the largest value; infinite where one is not finite.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0, scale = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    largest = std::max(largest, std::fabs(double{a[i]} - b[i]));
    scale = std::max(scale, std::fabs(double{b[i]}));
  }
  return largest / scale;
}

// Returns the largest difference of any step.
double converse(const DeviceInfo& gpu, const DeviceInfo& cpu, DType dtype, DType key_dtype,
                int32_t page_size) {
  std::mt19937 rng(7);
  Side sides[] = {Side(gpu, dtype, page_size), Side(cpu, dtype, page_size)};
  std::vector<int32_t> sequences;
  for (int i = 0; i < 3; ++i) {
    for (Side& side : sides) {
      auto sequence = side.cache().add_sequence();
      check_status(sequence.status(), "add_sequence");
      if (&side == sides) sequences.push_back(*sequence);
    }
  }
  double worst = 0.0;
  std::vector<int32_t> new_tokens = {300, 37, 2};  // then two tokens a step, a fork, a truncation
  for (int step = 0; step < 6; ++step) {
    const auto batch = static_cast<int64_t>(sequences.size());
    const int32_t width = *std::max_element(new_tokens.begin(), new_tokens.end());
    const auto keys = random_values(batch * width * kMlaKeyDim, key_dtype, rng);
    const auto queries = random_values(batch * kQueryLen * kHeads * kMlaKeyDim, dtype, rng);
    std::vector<float> outputs[2];
    for (int i = 0; i < 2; ++i) {
      sides[i].append(sequences, new_tokens, keys, key_dtype, width);
      outputs[i] = sides[i].decode(queries, dtype);
      check_status(sides[i].cache().commit(), "commit");
    }
    worst = std::max(worst, difference(outputs[0], outputs[1]));
    if (step == 2) {
      for (Side& side : sides) {
        auto child = side.cache().fork(sequences[0]);
        check_status(child.status(), "fork");
        if (&side == sides) sequences.push_back(*child);
        check_status(side.cache().truncate(sequences[0], 3), "truncate");
      }
    }
    new_tokens.assign(sequences.size(), 2);
  }
  return worst;
}

// Memory that host and device can read.
float* pinned_floats(int64_t count) {
  void* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, count * sizeof(float)), "pinned memory");
  return static_cast<float*>(memory);
}

double merge_difference(const DeviceInfo& gpu, const DeviceInfo& cpu) {
  constexpr int32_t kPartials = 5;
  constexpr int64_t kRows = 333, kDim = 96;
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  float* partial_o = pinned_floats(kPartials * kRows * kDim);
  float* partial_lse = pinned_floats(kPartials * kRows);
  float* o = pinned_floats(kRows * (kDim + 1));
  for (int64_t i = 0; i < kPartials * kRows * kDim; ++i) partial_o[i] = normal(rng);
  for (int64_t i = 0; i < kPartials * kRows; ++i) {
    // Row 5 is empty in every partial, some others in one.
    partial_lse[i] = i % kRows == 5 || i % 11 == 0 ? -INFINITY : 20.0f * normal(rng);
  }
  std::vector<float> results[2];
  const DeviceInfo* devices[] = {&gpu, &cpu};
  bool empty_is_right = true;
  for (int i = 0; i < 2; ++i) {
    float* lse = o + kRows * kDim;
    std::fill_n(o, kRows * (kDim + 1), NAN);
    const MergeArgs args{kPartials, kRows, kDim, partial_o, partial_lse, o, lse};
    check_status(merge_partials(args, *devices[i], nullptr), "merge_partials");
    check_cuda(cudaDeviceSynchronize(), "merge_partials");
    empty_is_right = empty_is_right && lse[5] == -INFINITY && o[5 * kDim] == 0.0f;
    lse[5] = 0.0f;
    results[i].assign(o, o + kRows * (kDim + 1));
  }
  cudaFreeHost(partial_o);
  cudaFreeHost(partial_lse);
  cudaFreeHost(o);
  return empty_is_right ? difference(results[0], results[1]) : INFINITY;
}

int run_all() {
  const auto gpu = detect_device(DeviceType::kCuda);
  if (!gpu.ok()) {
    std::printf("skipped: %s\n", gpu.status().message().c_str());
    return 77;
  }
  const auto cpu = detect_device(DeviceType::kCpu);
  check_status(cpu.status(), "detect_device");
  int passed = 0, failed = 0;
  const auto count = [&](double value, double limit, const std::string& what) {
    ++(value <= limit ? passed : failed);
    std::printf("%s: difference %.2e, limit %.2e%s\n", what.c_str(), value, limit,
                value <= limit ? "" : " FAILED");
  };
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    // Two roundings of the output, each half a unit in the last place of the largest value.
    const double limit = dtype == DType::kBF16 ? 2 * 0x1p-8 : 2 * 0x1p-11;
    for (DType key_dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (int32_t page_size : {16, 64, 128}) {
        count(converse(*gpu, *cpu, dtype, key_dtype, page_size), limit,
              fmt::format("cache: dtype {}, keys {}, page {}", static_cast<int>(dtype),
                          static_cast<int>(key_dtype), page_size));
      }
    }
  }
  count(merge_difference(*gpu, *cpu), 1e-6, "merge_partials");
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longdecode::gpu_test

int main() { return longdecode::gpu_test::run_all(); }
