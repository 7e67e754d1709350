// A small paged cache for unit tests: poisoned pools, scattered pages, random keys and values that
// come in through append_kv.
#ifndef LONGDECODE_TESTS_UNIT_SMALL_CACHE_H_
#define LONGDECODE_TESTS_UNIT_SMALL_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

#include "base/float_convert.h"
#include "longdecode/attention.h"
#include "longdecode/kv_cache.h"

namespace longdecode::test {

// Bytes of 0xFF: NaN in every dtype, a garbage id as int32. 16-byte aligned, not more.
class Poisoned {
 public:
  explicit Poisoned(int64_t num_bytes = 0)
      : bytes_(static_cast<size_t>(num_bytes + 64), uint8_t{0xFF}) {}
  void* data() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + ((address + 63) / 64 * 64 - address) + 16;
  }

 private:
  std::vector<uint8_t> bytes_;
};

// An owned contiguous tensor, NaN until filled.
class TestTensor {
 public:
  TestTensor() = default;
  TestTensor(DType dtype, std::initializer_list<int64_t> shape) {
    count_ = 1;
    for (int64_t size : shape) count_ *= size;
    memory_ = Poisoned(count_ * dtype_bytes(dtype));
    view_ = TensorView::contiguous(nullptr, dtype, shape);
  }
  TensorView view() {
    view_.data = memory_.data();
    return view_;
  }
  void fill_normal(std::mt19937& rng, float deviation) {
    std::normal_distribution<float> normal(0.0f, deviation);
    for (int64_t i = 0; i < count_; ++i) {
      store_element(memory_.data(), view_.dtype, i, normal(rng));
    }
  }
  float at(int64_t i) { return load_element(memory_.data(), view_.dtype, i); }
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
  Poisoned memory_;
  TensorView view_;
};

inline DeviceInfo cpu_device(int32_t num_threads = 2) {
  DeviceInfo device;
  device.num_threads = num_threads;
  return device;
}

class SmallCache {
 public:
  // Sequences of the given lengths; block table entries past a sequence's end are garbage.
  SmallCache(const KvFormat& format, const std::vector<int32_t>& kv_lens, uint32_t seed = 1)
      : kv_lens_(kv_lens), rng_(seed) {
    const auto batch = static_cast<int64_t>(kv_lens.size());
    const int64_t max_len = *std::max_element(kv_lens.begin(), kv_lens.end());
    const int64_t width = max_len / format.page_size + 2;
    const int64_t pages = batch * width + 3;
    const int64_t heads = format.num_kv_heads;
    view_.format = format;
    const bool two_plane = format.keys == KeyEncoding::kTwoPlane;
    k_ = TestTensor(format.dtype, {two_plane ? 0 : pages, heads, format.page_size, format.key_dim});
    v_ = TestTensor(format.dtype, {pages, heads, format.page_size, format.value_dim});
    ring_ = TestTensor(format.dtype,
                       {two_plane ? batch : 0, heads, format.recent_ring_tokens(), format.key_dim});
    view_.k = k_.view();
    view_.v = v_.view();
    if (two_plane) {
      view_.chunk_page_stride_bytes = heads * format.chunk_bytes();
      view_.residual_page_stride_bytes = heads * format.residual_bytes();
      chunks_ = Poisoned(pages * view_.chunk_page_stride_bytes);
      residuals_ = Poisoned(pages * view_.residual_page_stride_bytes);
      view_.chunks = static_cast<uint8_t*>(chunks_.data());
      view_.residuals = static_cast<uint8_t*>(residuals_.data());
      view_.num_pages = pages;
      view_.recent_k = ring_.view();
    }
    std::vector<int32_t> ids(static_cast<size_t>(pages));
    for (int64_t i = 0; i < pages; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), rng_);
    block_table_.assign(static_cast<size_t>(batch * width), 2147480000);
    for (int64_t b = 0; b < batch; ++b) {
      slots_.push_back(static_cast<int32_t>(batch - 1 - b));
      const int64_t used =
          (kv_lens[static_cast<size_t>(b)] + format.page_size - 1) / format.page_size;
      for (int64_t i = 0; i < used; ++i) {
        block_table_[static_cast<size_t>(b * width + i)] = ids.back();
        ids.pop_back();
      }
    }
    batch_.batch = static_cast<int32_t>(batch);
    batch_.block_table = block_table_.data();
    batch_.block_table_stride = width;
    batch_.kv_lens = kv_lens_.data();
    batch_.slots = slots_.data();
    append_all(max_len);
  }

  const KvLayerView& layer() const { return view_; }
  const BatchView& batch() const { return batch_; }
  std::vector<int32_t>& kv_lens() { return kv_lens_; }
  std::vector<int32_t>& block_table() { return block_table_; }
  std::mt19937& rng() { return rng_; }
  Status append_status() const { return append_status_; }

 private:
  void append_all(int64_t max_len) {
    const KvFormat& format = view_.format;
    TestTensor k(DType::kF32, {batch_.batch, max_len, format.num_kv_heads, format.key_dim});
    TestTensor v(DType::kF32, {batch_.batch, max_len, format.num_kv_heads, format.value_dim});
    k.fill_normal(rng_, 1.0f);
    v.fill_normal(rng_, 1.0f);
    AppendArgs args;
    args.kv = view_;
    args.batch = batch_;
    args.batch.query_lens = batch_.kv_lens;
    args.k = k.view();
    args.v = v.view();
    append_status_ = append_kv(args, cpu_device(), nullptr);
  }

  std::vector<int32_t> kv_lens_;
  std::mt19937 rng_;
  KvLayerView view_;
  BatchView batch_;
  TestTensor k_, v_, ring_;
  Poisoned chunks_, residuals_;
  std::vector<int32_t> block_table_, slots_;
  Status append_status_;
};

// A plan with its workspace and the tensors of one run, poisoned.
struct TestRun {
  TestRun(const DecodeDesc& descriptor, SmallCache& cache, int32_t query_len)
      : desc(descriptor),
        q(desc.q_dtype, {cache.batch().batch, query_len, desc.num_q_heads, desc.format.key_dim}),
        o(desc.q_dtype, {cache.batch().batch, query_len, desc.num_q_heads, desc.format.value_dim}),
        lse(static_cast<size_t>(cache.batch().batch * query_len * desc.num_q_heads), -7.0f) {
    q.fill_normal(cache.rng(), 1.0f);
    args.query_len = query_len;
    args.q = q.view();
    args.o = o.view();
    args.lse = lse.data();
    args.kv = cache.layer();
    args.batch = cache.batch();
  }
  Status run(const DeviceInfo& device = cpu_device()) {
    Result<DecodePlan> plan = DecodePlan::create(desc, device);
    if (!plan.ok()) return plan.status();
    Poisoned workspace(plan->workspace_bytes());
    if (Status status = plan->init(workspace.data(), nullptr); !status.ok()) return status;
    return plan->run(args, nullptr);
  }
  DecodeDesc desc;
  TestTensor q, o;
  std::vector<float> lse;
  DecodeArgs args;
};

inline DecodeDesc dense_desc(const KvFormat& format, int32_t num_q_heads, int64_t max_kv_len) {
  DecodeDesc desc;
  desc.format = format;
  desc.q_dtype = DType::kF32;
  desc.num_q_heads = num_q_heads;
  desc.max_batch = 8;
  desc.max_query_len = kMaxQueryLen;
  desc.max_kv_len = max_kv_len;
  if (format.op == Op::kMla) desc.softmax_scale = 0.06f;
  return desc;
}

}  // namespace longdecode::test

#endif  // LONGDECODE_TESTS_UNIT_SMALL_CACHE_H_
