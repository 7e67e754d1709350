// Prefill attention on CUDA against fp64 over the stored keys.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "base/backend.h"
#include "longdecode/kv_cache.h"
#include "ops/backends.h"
#include "ref/attention.h"
#include "tests/gpu/model/arrays.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;
using gpu_test::check_status;

struct Spec {
  KeyEncoding keys;
  int32_t q_heads, kv_heads, head_dim, page_size, kv_len, num_tokens;
};

// The stored keys as the kernel multiplies them, in bf16; the values, or their magnitudes.
class Rounded : public ref::KvSource {
 public:
  Rounded(const ref::KvSource& stored, bool magnitudes)
      : stored_(stored), magnitudes_(magnitudes) {}
  int64_t kv_len() const override { return stored_.kv_len(); }
  int32_t num_kv_heads() const override { return stored_.num_kv_heads(); }
  int32_t key_dim() const override { return stored_.key_dim(); }
  int32_t value_dim() const override { return stored_.value_dim(); }
  void key(int32_t head, int64_t token, double* row) const override {
    stored_.key(head, token, row);
    for (int32_t c = 0; c < key_dim(); ++c) {
      row[c] = bf16_to_f32(f32_to_bf16(static_cast<float>(row[c])));
    }
  }
  void value(int32_t head, int64_t token, double* row) const override {
    stored_.value(head, token, row);
    for (int32_t c = 0; magnitudes_ && c < value_dim(); ++c) row[c] = std::fabs(row[c]);
  }

 private:
  const ref::KvSource& stored_;
  bool magnitudes_;
};

// The same tokens in a cache of the GPU and in one of the CPU.
class Caches {
 public:
  explicit Caches(const Spec& spec) {
    const std::vector<uint16_t> k = values(spec, 1), v = values(spec, 2);
    const DeviceArray<uint16_t> device_k(k), device_v(v);
    append(spec, cuda_device(), device_k.data(), device_v.data(), &gpu_);
    auto cpu = detect_device(DeviceType::kCpu);
    check_status(cpu.status(), "detect_device");
    append(spec, *cpu, const_cast<uint16_t*>(k.data()), const_cast<uint16_t*>(v.data()), &cpu_);
  }
  const KvCache& gpu() const { return *gpu_; }
  const KvCache& cpu() const { return *cpu_; }

 private:
  static std::vector<uint16_t> values(const Spec& spec, uint32_t seed) {
    return to_bf16(normal_floats(int64_t{spec.kv_len} * spec.kv_heads * spec.head_dim, 1.5f, seed));
  }
  static void append(const Spec& spec, const DeviceInfo& device, uint16_t* k, uint16_t* v,
                     std::unique_ptr<KvCache>* to) {
    KvCacheDesc desc;
    desc.format =
        KvFormat::gqa(spec.keys, DType::kBF16, spec.kv_heads, spec.head_dim, spec.page_size);
    desc.num_pages = spec.kv_len / spec.page_size + 2;
    desc.max_kv_len = desc.num_pages * spec.page_size;
    auto cache = KvCache::create(desc, device);
    check_status(cache.status(), "KvCache::create");
    *to = std::make_unique<KvCache>(std::move(cache).value());
    if (device.type == DeviceType::kCuda) poison((*to)->layer(0));
    auto sequence = (*to)->add_sequence();
    check_status(sequence.status(), "add_sequence");
    const std::vector<SequenceId> sequences = {*sequence};
    const std::vector<int32_t> new_tokens = {spec.kv_len};
    check_status((*to)->reserve(sequences, new_tokens), "reserve");
    const auto view = [&](uint16_t* data) {
      return TensorView::contiguous(data, DType::kBF16,
                                    {1, spec.kv_len, spec.kv_heads, spec.head_dim});
    };
    check_status((*to)->append(0, view(k), view(v), nullptr), "append");
    check_cuda(cudaDeviceSynchronize(), "append");
  }
  static void poison(const KvLayerView& kv) {
    for (const TensorView& view : {kv.k, kv.v, kv.recent_k}) {
      if (view.data == nullptr) continue;
      check_cuda(
          cudaMemset(view.data, 0xff, static_cast<size_t>(2 * view.shape[0] * view.stride[0])),
          "poison");
    }
  }

  std::unique_ptr<KvCache> gpu_, cpu_;
};

// Outputs that are out of tolerance; a wrong one if `shift` other than 0 is a token's position.
int64_t count_wrong(const Spec& spec, int32_t shift) {
  const Caches caches(spec);
  const int64_t count = int64_t{spec.num_tokens} * spec.q_heads * spec.head_dim;
  const std::vector<uint16_t> q = to_bf16(normal_floats(count, 1.5f, 3));
  const DeviceArray<uint16_t> device_q(q), o(count);
  PrefillArgs args;
  args.q = TensorView::contiguous(device_q.data(), DType::kBF16,
                                  {spec.num_tokens, spec.q_heads, spec.head_dim});
  args.o = args.q;
  args.o.data = o.data();
  args.kv = caches.gpu().layer(0);
  args.batch = caches.gpu().step();
  args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  check_status(prefill_attention(args, cuda_device(), nullptr), "prefill");
  const std::vector<float> result = to_floats(o.get());
  EXPECT_TRUE(o.intact());

  const ref::PagedSource stored(caches.cpu().layer(0), caches.cpu().step(), 0);
  const Rounded source(stored, false), magnitudes(stored, true);
  ref::AttentionProblem problem;
  problem.kv = &source;
  problem.num_q_heads = spec.q_heads;
  problem.query_len = spec.num_tokens + shift;
  for (const float x : to_floats(q)) problem.q.push_back(x);
  problem.q.resize(static_cast<size_t>(problem.query_len) * spec.q_heads * spec.head_dim, 0.0);
  problem.softmax_scale = args.softmax_scale;
  const ref::AttentionOutput expected = ref::attend(problem);
  problem.kv = &magnitudes;
  const ref::AttentionOutput sizes = ref::attend(problem);  // sums of p |v|
  int64_t wrong = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    // Weights and the output are rounded to bf16. A score is a sum of fp32 products of at most
    // 8 * 8 * head_dim, and a key out of the planes may be rounded to the other neighbour.
    const double score_error =
        args.softmax_scale * (0x1p-22 * 64.0 * spec.head_dim +
                              (spec.keys == KeyEncoding::kTwoPlane ? 0x1p-8 * 8.0 : 0.0));
    const double tolerance =
        0x1p-8 * std::fabs(expected.o[i]) + (0x1p-8 + 2.0 * score_error) * sizes.o[i];
    wrong += !(std::fabs(result[i] - expected.o[i]) <= tolerance);
  }
  return wrong;
}

TEST(CudaPrefill, FormatsAndChunks) {
  constexpr KeyEncoding kPlain = KeyEncoding::kPlain, kTwoPlane = KeyEncoding::kTwoPlane;
  for (const Spec& spec :
       {Spec{kPlain, 9, 3, 64, 64, 300, 300}, Spec{kPlain, 4, 4, 80, 16, 200, 77},
        Spec{kPlain, 4, 1, 96, 32, 129, 1}, Spec{kPlain, 8, 2, 128, 128, 1000, 200},
        Spec{kPlain, 2, 2, 256, 64, 333, 65}, Spec{kPlain, 3, 1, 80, 1, 65, 64},
        Spec{kTwoPlane, 9, 3, 64, 64, 500, 130}, Spec{kTwoPlane, 4, 2, 128, 128, 1000, 64},
        Spec{kTwoPlane, 4, 1, 128, 64, 135, 135}, Spec{kTwoPlane, 4, 2, 96, 128, 400, 3},
        Spec{kTwoPlane, 2, 1, 256, 64, 330, 100}, Spec{kTwoPlane, 2, 1, 80, 64, 300, 90},
        Spec{kTwoPlane, 2, 1, 80, 128, 136, 136}}) {
    EXPECT_EQ(count_wrong(spec, 0), 0)
        << "head_dim " << spec.head_dim << ", page " << spec.page_size << ", kv_len " << spec.kv_len
        << ", two-plane " << (spec.keys == kTwoPlane);
  }
  // The test sees positions that are one off.
  EXPECT_GT(count_wrong({kPlain, 4, 2, 64, 64, 70, 32}, 1), 100);
  EXPECT_GT(count_wrong({kTwoPlane, 4, 2, 64, 64, 90, 32}, 1), 100);
}

}  // namespace
}  // namespace longdecode::testing
