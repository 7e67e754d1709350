// GQA over an engine's own paged pools, without KvCache: append_kv writes the tokens, dense
// attention and FFD read them. A page is one block of memory: K and V of all its heads, or for FFD
// the two planes and V. Exits with 1 when FFD keeps too much or is too far from dense attention.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "longdecode/longdecode.h"

namespace ld = longdecode;

namespace {

constexpr int kNumQHeads = 8;
constexpr int kNumKvHeads = 2;
constexpr int kHeadDim = 64;
constexpr int kKvLen = 8192;
constexpr int kPageSize = 64;
constexpr int kNumPages = kKvLen / kPageSize;

void check(const ld::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  std::exit(1);
}

ld::TensorView view(std::vector<float>& data, int64_t tokens, int64_t heads) {
  return ld::TensorView::contiguous(data.data(), ld::DType::kF32, {1, tokens, heads, kHeadDim});
}

// K or V of every page of a pool with pages of page_bytes.
ld::TensorView paged(uint8_t* data, int64_t page_bytes) {
  auto tensor = ld::TensorView::contiguous(data, ld::DType::kBF16,
                                           {kNumPages, kNumKvHeads, kPageSize, kHeadDim});
  tensor.stride[0] = page_bytes / ld::dtype_bytes(tensor.dtype);
  return tensor;
}

// One layer of the engine's cache: its memory, all NaN, and what the kernels see of it.
struct Layer {
  std::vector<uint8_t> pool, ring;
  ld::KvLayerView kv;

  explicit Layer(ld::KeyEncoding keys) {
    kv.format = ld::KvFormat::gqa(keys, ld::DType::kBF16, kNumKvHeads, kHeadDim, kPageSize);
    const bool is_plain = keys == ld::KeyEncoding::kPlain;
    const int64_t value_bytes = int64_t{kNumKvHeads} * kPageSize * kHeadDim * 2;
    const int64_t chunk_bytes = kNumKvHeads * kv.format.chunk_bytes();
    const int64_t residual_bytes = kNumKvHeads * kv.format.residual_bytes();
    const int64_t key_bytes = is_plain ? value_bytes : chunk_bytes + residual_bytes;
    const int64_t page_bytes = key_bytes + value_bytes;
    pool.assign(static_cast<size_t>(kNumPages * page_bytes), 0xff);
    kv.v = paged(pool.data() + key_bytes, page_bytes);
    if (is_plain) {
      kv.k = paged(pool.data(), page_bytes);
      return;
    }
    kv.chunks = pool.data();
    kv.residuals = pool.data() + chunk_bytes;
    kv.chunk_page_stride_bytes = kv.residual_page_stride_bytes = page_bytes;
    kv.num_pages = kNumPages;
    // Keys that are not yet quantised, of the one sequence that there is.
    const int64_t ring_tokens = kv.format.recent_ring_tokens();
    ring.assign(static_cast<size_t>(kNumKvHeads * ring_tokens * kHeadDim * 2), 0xff);
    kv.recent_k = ld::TensorView::contiguous(ring.data(), ld::DType::kBF16,
                                             {1, kNumKvHeads, ring_tokens, kHeadDim});
  }
};

// Scores are about N(0, 1) nats, those of two tokens 14.
struct Workload {
  std::vector<float> k = std::vector<float>(size_t{kKvLen} * kNumKvHeads * kHeadDim);
  std::vector<float> v = k;
  std::vector<float> q = std::vector<float>(kNumQHeads * kHeadDim, 1.0f);

  Workload() {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& value : k) value = normal(rng);
    for (float& value : v) value = normal(rng);
    for (int token : {700, kKvLen - 3}) {
      std::fill_n(k.begin() + token * kNumKvHeads * kHeadDim, kNumKvHeads * kHeadDim, 1.75f);
    }
  }
};

struct Output {
  std::vector<float> o;
  double kept_fraction = 0.0;  // of kv head 0
};

// Appends all tokens in one step, where a decode loop appends one at a time, then attends.
Output append_and_decode(ld::Method method, Layer& layer, const ld::BatchView& batch,
                         Workload& workload, const ld::DeviceInfo& device) {
  ld::AppendArgs append;
  append.kv = layer.kv;
  append.batch = batch;  // no query_lens: as many new tokens as k has
  append.k = view(workload.k, kKvLen, kNumKvHeads);
  append.v = view(workload.v, kKvLen, kNumKvHeads);
  check(ld::append_kv(append, device, nullptr), "append_kv");

  ld::DecodeDesc desc;
  desc.method = method;
  desc.format = layer.kv.format;
  desc.q_dtype = ld::DType::kF32;
  desc.num_q_heads = kNumQHeads;
  desc.max_kv_len = kKvLen;
  desc.ffd.delta = 10.0f;
  auto plan = ld::DecodePlan::create(desc, device);
  check(plan.status(), "DecodePlan::create");
  std::vector<float> workspace(static_cast<size_t>(plan->workspace_bytes()) / sizeof(float) + 4);
  check(plan->init(workspace.data(), nullptr), "init");

  std::vector<float> o(workload.q.size(), NAN);
  int64_t attended[kNumKvHeads] = {};
  ld::DecodeArgs args;
  args.q = view(workload.q, 1, kNumQHeads);
  args.o = view(o, 1, kNumQHeads);
  args.kv = layer.kv;
  args.batch = batch;
  args.stats.tokens_attended = attended;
  check(plan->run(args, nullptr), "run");
  const double kept_fraction = double(attended[0]) / kKvLen;
  std::printf("%s (%s): %d tokens, kept_fraction %.4f\n", plan->kernel().name.c_str(),
              plan->kernel().isa.c_str(), kKvLen, kept_fraction);
  return {o, kept_fraction};
}

}  // namespace

int main() {
  auto device = ld::detect_device(ld::DeviceType::kCpu);
  check(device.status(), "detect_device");
  Workload workload;
  Layer plain(ld::KeyEncoding::kPlain);
  Layer two_plane(ld::KeyEncoding::kTwoPlane);

  // The engine's pages, in any order, the same in every layer.
  std::vector<int32_t> block_table(kNumPages);
  std::iota(block_table.begin(), block_table.end(), 0);
  std::shuffle(block_table.begin(), block_table.end(), std::mt19937(2));
  const int32_t kv_len = kKvLen;
  const int32_t slot = 0;
  ld::BatchView batch;
  batch.batch = 1;
  batch.block_table = block_table.data();
  batch.block_table_stride = kNumPages;
  batch.kv_lens = &kv_len;
  batch.slots = &slot;  // the sequence's row of the ring

  const Output dense = append_and_decode(ld::Method::kDense, plain, batch, workload, *device);
  const Output ffd = append_and_decode(ld::Method::kFfd, two_plane, batch, workload, *device);
  double difference = 0.0;
  for (size_t i = 0; i < dense.o.size(); ++i) {
    const double d = std::abs(double(dense.o[i]) - double(ffd.o[i]));
    difference = std::max(difference, std::isnan(d) ? INFINITY : d);  // max passes over a NaN
  }
  std::printf("largest difference: %.4f\n", difference);
  return difference < 0.05 && ffd.kept_fraction < 0.25 ? 0 : 1;
}
