// RoPE on CUDA against fp64, and rope_append against rope and KvCache::append.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "cuda/model/model_ops.h"
#include "longdecode/kv_cache.h"
#include "tests/gpu/model/arrays.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;
using gpu_test::check_status;

struct Spec {
  int32_t q_heads, kv_heads, head_dim, rope_dim;
  bool adjacent, norm;
};

// SmolLM2, Llama 3, Qwen2.5, Qwen3 (QK norm), and parts of a head.
constexpr Spec kSpecs[] = {{9, 3, 64, 64, true, false},     {32, 8, 128, 128, true, false},
                           {28, 4, 128, 128, false, false}, {16, 8, 128, 128, false, true},
                           {3, 1, 96, 64, false, true},     {2, 2, 256, 256, true, true},
                           {2, 1, 40, 6, true, false},      {4, 2, 80, 80, false, false}};
constexpr float kEps = 1e-6f;

// A model's constants, on both sides.
struct Model {
  Spec spec;
  std::vector<double> frequencies;
  std::vector<float> q_norm, k_norm;
  DeviceArray<double> device_frequencies;
  DeviceArray<float> device_q_norm, device_k_norm;

  explicit Model(const Spec& s)
      : spec(s),
        frequencies(make_frequencies(s)),
        q_norm(normal_floats(s.head_dim, 1.0f, 21)),
        k_norm(normal_floats(s.head_dim, 1.0f, 22)),
        device_frequencies(frequencies),
        device_q_norm(q_norm),
        device_k_norm(k_norm) {}

  static std::vector<double> make_frequencies(const Spec& s) {
    std::vector<double> values(static_cast<size_t>(s.rope_dim / 2));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::pow(5e5, -2.0 * static_cast<double>(i) / s.rope_dim);
    }
    return values;
  }

  cuda::RopeModel view() const {
    cuda::RopeModel m;
    m.num_q_heads = spec.q_heads;
    m.num_kv_heads = spec.kv_heads;
    m.head_dim = spec.head_dim;
    m.rope_dim = spec.rope_dim;
    m.adjacent_pairs = spec.adjacent;
    m.frequencies = device_frequencies.data();
    if (spec.norm) m.q_norm = device_q_norm.data();
    if (spec.norm) m.k_norm = device_k_norm.data();
    m.norm_eps = kEps;
    return m;
  }

  // One head [head_dim]; norm may be nullptr.
  std::vector<double> rotate(const float* head, const float* norm, int64_t position) const {
    std::vector<double> x(head, head + spec.head_dim);
    if (norm != nullptr) {
      const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
      const double scale = 1.0 / std::sqrt(squares / spec.head_dim + kEps);
      for (size_t c = 0; c < x.size(); ++c) x[c] *= scale * norm[c];
    }
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const size_t first = spec.adjacent ? 2 * i : i;
      const size_t second = spec.adjacent ? 2 * i + 1 : i + frequencies.size();
      const double angle = static_cast<double>(position) * frequencies[i];
      const double a = x[first], b = x[second];
      x[first] = a * std::cos(angle) - b * std::sin(angle);
      x[second] = a * std::sin(angle) + b * std::cos(angle);
    }
    return x;
  }
};

int64_t count_wrong(const std::vector<double>& expected, const uint16_t* result) {
  int64_t wrong = 0;
  double size = 0.0;
  for (const double x : expected) size = std::max(size, std::fabs(x));
  for (size_t c = 0; c < expected.size(); ++c) {
    // Half a unit of bf16; fp32 sines of an angle that is good to 2^-22, of the pair's size.
    const double tolerance = 0x1p-8 * std::fabs(expected[c]) + 0x1p-20 * size;
    wrong += !(std::fabs(bf16_to_f32(result[c]) - expected[c]) <= tolerance);
  }
  return wrong;
}

TEST(CudaRope, AgainstFp64) {
  for (const Spec& spec : kSpecs) {
    const Model model(spec);
    constexpr int32_t kBatch = 3, kQueryLen = 5;
    const std::vector<int32_t> kv_lens = {5, 262144, 100003}, new_lens = {5, 2, 0};
    const int64_t rows = int64_t{kBatch} * kQueryLen;
    const int32_t heads = spec.q_heads + 2 * spec.kv_heads;
    const std::vector<float> qkv = normal_floats(rows * heads * spec.head_dim, 2.0f, 1);
    const DeviceArray<float> device_qkv(qkv);
    const DeviceArray<int32_t> device_kv_lens(kv_lens), device_new_lens(new_lens);
    const DeviceArray<uint16_t> q(rows * spec.q_heads * spec.head_dim);
    const DeviceArray<uint16_t> k(rows * spec.kv_heads * spec.head_dim);
    const DeviceArray<uint16_t> v(rows * spec.kv_heads * spec.head_dim);
    cuda::RopeArgs args;
    args.model = model.view();
    args.batch.batch = kBatch;
    args.batch.kv_lens = device_kv_lens.data();
    args.batch.query_lens = device_new_lens.data();
    args.query_len = kQueryLen;
    args.qkv = device_qkv.data();
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    check_status(cuda::rope(args, cuda_device(), nullptr), "rope");
    const std::vector<uint16_t> results[] = {q.get(), k.get(), v.get()};
    EXPECT_TRUE(q.intact() && k.intact() && v.intact());
    int64_t wrong = 0, wrong_position = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const size_t b = size_t(row / kQueryLen);
      const int32_t token = int32_t(row % kQueryLen);
      const bool exists = token < new_lens[b];
      const int64_t position = kv_lens[b] - new_lens[b] + token;
      for (int32_t h = 0; h < heads; ++h) {
        const float* from = qkv.data() + (row * heads + h) * spec.head_dim;
        const int32_t part = h < spec.q_heads ? 0 : h < spec.q_heads + spec.kv_heads ? 1 : 2;
        const int32_t part_heads = part == 0 ? spec.q_heads : spec.kv_heads;
        const int32_t head = h - (part == 0 ? 0 : spec.q_heads + (part - 1) * spec.kv_heads);
        const uint16_t* result = results[part].data() + (row * part_heads + head) * spec.head_dim;
        if (!exists) {  // left alone
          for (int32_t c = 0; c < spec.head_dim; ++c) wrong += result[c] != 0xffff;
          continue;
        }
        const float* norm = part == 0 ? model.q_norm.data() : model.k_norm.data();
        const std::vector<double> plain(from, from + spec.head_dim);
        const auto at = [&](int64_t p) {
          return part == 2 ? plain : model.rotate(from, spec.norm ? norm : nullptr, p);
        };
        wrong += count_wrong(at(position), result);
        wrong_position += part == 2 ? 0 : count_wrong(at(position + 1), result);
      }
    }
    EXPECT_EQ(wrong, 0) << spec.head_dim << " of " << spec.q_heads << " heads";
    EXPECT_GT(wrong_position, 10);  // the test sees a position that is one off
  }
}

// A cache whose pools were poisoned, so that equal bytes mean equal writes.
class PoisonedCache {
 public:
  PoisonedCache(const KvFormat& format, int32_t sequences, int64_t max_kv_len) {
    KvCacheDesc desc;
    desc.format = format;
    desc.num_pages = sequences * (max_kv_len / format.page_size + 1);
    desc.max_sequences = sequences;
    desc.max_kv_len = max_kv_len;
    auto cache = KvCache::create(desc, cuda_device());
    check_status(cache.status(), "KvCache::create");
    cache_ = std::make_unique<KvCache>(std::move(cache).value());
    for (const auto& [memory, bytes] : pools()) {
      check_cuda(cudaMemset(memory, 0xff, static_cast<size_t>(bytes)), "poison");
    }
    for (int32_t i = 0; i < sequences; ++i) {
      auto sequence = cache_->add_sequence();
      check_status(sequence.status(), "add_sequence");
      sequences_.push_back(*sequence);
    }
  }

  KvCache& cache() { return *cache_; }
  const std::vector<SequenceId>& sequences() const { return sequences_; }

  std::vector<uint8_t> bytes() const {
    check_cuda(cudaDeviceSynchronize(), "append");
    std::vector<uint8_t> all;
    for (const auto& [memory, count] : pools()) {
      const size_t begin = all.size();
      all.resize(begin + static_cast<size_t>(count));
      check_cuda(
          cudaMemcpy(all.data() + begin, memory, static_cast<size_t>(count), cudaMemcpyDefault),
          "download");
    }
    return all;
  }

 private:
  std::vector<std::pair<void*, int64_t>> pools() const {
    const KvLayerView kv = cache_->layer(0);
    const auto bytes_of = [](const TensorView& view) { return 2 * view.shape[0] * view.stride[0]; };
    std::vector<std::pair<void*, int64_t>> pools = {{kv.v.data, bytes_of(kv.v)}};
    if (kv.format.keys == KeyEncoding::kPlain) {
      pools.push_back({kv.k.data, bytes_of(kv.k)});
    } else {
      pools.push_back({kv.recent_k.data, bytes_of(kv.recent_k)});
      pools.push_back({kv.chunks, kv.num_pages * kv.chunk_page_stride_bytes});
      pools.push_back({kv.residuals, kv.num_pages * kv.residual_page_stride_bytes});
    }
    return pools;
  }

  std::unique_ptr<KvCache> cache_;
  std::vector<SequenceId> sequences_;
};

// One step of both caches with the same products; false when q or, if compared, the bytes of the
// caches differ.
bool step_is_equal(const Model& model, PoisonedCache& separate, PoisonedCache& fused,
                   const std::vector<int32_t>& new_tokens, int32_t width, uint32_t seed,
                   bool compare_caches) {
  const Spec& spec = model.spec;
  const auto batch = static_cast<int64_t>(new_tokens.size());
  const int64_t rows = batch * width;
  const int64_t head_dim = spec.head_dim;
  const DeviceArray<float> qkv(
      normal_floats(rows * (spec.q_heads + 2 * spec.kv_heads) * head_dim, 2.0f, seed));
  const DeviceArray<uint16_t> q(rows * spec.q_heads * head_dim), k(rows * spec.kv_heads * head_dim),
      v(rows * spec.kv_heads * head_dim), fused_q(rows * spec.q_heads * head_dim);
  for (PoisonedCache* side : {&separate, &fused}) {
    check_status(side->cache().reserve(side->sequences(), new_tokens), "reserve");
  }
  const cuda::RopeArgs rope_args{
      model.view(), separate.cache().step(), width, qkv.data(), q.data(), k.data(), v.data()};
  check_status(cuda::rope(rope_args, cuda_device(), nullptr), "rope");
  const auto view = [&](const DeviceArray<uint16_t>& array) {
    return TensorView::contiguous(array.data(), DType::kBF16,
                                  {batch, width, spec.kv_heads, head_dim});
  };
  check_status(separate.cache().append(0, view(k), view(v), nullptr), "append");
  check_status(separate.cache().commit(), "commit");
  if (width <= cuda::kMaxLinearTokens) {
    const cuda::RopeAppendArgs args{model.view(), fused.cache().step(), width,
                                    qkv.data(),   fused_q.data(),       fused.cache().layer(0)};
    check_status(cuda::rope_append(args, cuda_device(), nullptr), "rope_append");
    check_status(fused.cache().mark_appended(0), "mark_appended");
  } else {  // a prefill of both
    check_status(fused.cache().append(0, view(k), view(v), nullptr), "append");
  }
  check_status(fused.cache().commit(), "commit");
  const bool q_is_equal = width > cuda::kMaxLinearTokens || q.get() == fused_q.get();
  return q_is_equal && fused_q.intact() && (!compare_caches || separate.bytes() == fused.bytes());
}

TEST(CudaRope, AppendInOneLaunch) {
  for (const Spec& spec : {kSpecs[0], kSpecs[3], kSpecs[4], kSpecs[5]}) {
    const Model model(spec);
    for (const KeyEncoding keys : {KeyEncoding::kPlain, KeyEncoding::kTwoPlane}) {
      for (const int32_t page_size : {64, 128}) {
        const KvFormat format =
            KvFormat::gqa(keys, DType::kBF16, spec.kv_heads, spec.head_dim, page_size);
        constexpr int32_t kSequences = 3;
        PoisonedCache separate(format, kSequences, 1024), fused(format, kSequences, 1024);
        int different = 0;
        different += !step_is_equal(model, separate, fused, {300, 61, 9}, 300, 1, true);
        for (uint32_t step = 0; step < 150; ++step) {  // over two page ends, lengths ragged
          const int32_t width = step % 7 == 0 ? 8 : step % 3 == 0 ? 4 : 1;
          different +=
              !step_is_equal(model, separate, fused, {width, step % 2 == 0 ? 1 : width, width / 2},
                             width, step, step % 10 == 9);
        }
        EXPECT_EQ(different, 0) << spec.head_dim << ", page " << page_size << ", two-plane "
                                << (keys == KeyEncoding::kTwoPlane);
      }
    }
  }
}

}  // namespace
}  // namespace longdecode::testing
