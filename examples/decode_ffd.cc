// Decode with top-delta selection over a two-plane cache: reads 2 bits of every key and the rest of
// few. Three tokens that matter are planted far apart; the program prints what was kept and how far
// the result is from exact attention over the original keys. Exits with 1 when it is too far.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "longdecode/longdecode.h"

namespace ld = longdecode;

namespace {

constexpr int kNumQHeads = 8;
constexpr int kNumKvHeads = 2;
constexpr int kGroup = kNumQHeads / kNumKvHeads;
constexpr int kHeadDim = 64;
constexpr int kKvLen = 16384;
constexpr int kChunk = 512;  // tokens per append, as in a chunked prefill

void check(const ld::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  std::exit(1);
}

ld::TensorView view(float* data, int64_t tokens, int64_t heads) {
  return ld::TensorView::contiguous(data, ld::DType::kF32, {1, tokens, heads, kHeadDim});
}

// Keys and values [kKvLen, kNumKvHeads, kHeadDim], queries [kNumQHeads, kHeadDim]. Scores are about
// N(0, 1) nats, those of the planted tokens about 14.
struct Workload {
  std::vector<float> k, v, q, direction;

  Workload() {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, size_t rows) {
      values.resize(rows * kHeadDim);
      for (float& value : values) value = normal(rng);
    };
    fill(k, size_t{kKvLen} * kNumKvHeads);
    fill(v, size_t{kKvLen} * kNumKvHeads);
    fill(q, kNumQHeads);
    fill(direction, kNumKvHeads);
    for (int h = 0; h < kNumKvHeads; ++h) normalize(&direction[size_t(h) * kHeadDim]);
    for (int i = 0; i < kNumQHeads; ++i) {
      for (int c = 0; c < kHeadDim; ++c) {
        float& value = q[size_t(i) * kHeadDim + c];
        value = 8.0f * direction[size_t(i / kGroup) * kHeadDim + c] + 0.1f * value;
      }
    }
    for (int token : {5000, 11000, kKvLen - 3}) {
      for (int i = 0; i < kNumKvHeads * kHeadDim; ++i) {
        k[size_t(token) * kNumKvHeads * kHeadDim + i] = 14.0f * direction[i];
      }
    }
  }

  static void normalize(float* row) {
    float sum = 0.0f;
    for (int c = 0; c < kHeadDim; ++c) sum += row[c] * row[c];
    for (int c = 0; c < kHeadDim; ++c) row[c] /= std::sqrt(sum);
  }

  // Exact attention of one query head in double.
  std::vector<double> exact(int head) const {
    std::vector<double> o(kHeadDim, 0.0);
    double denominator = 0.0;
    for (int j = 0; j < kKvLen; ++j) {
      const size_t row = size_t(j * kNumKvHeads + head / kGroup) * kHeadDim;
      double score = 0.0;
      for (int c = 0; c < kHeadDim; ++c)
        score += double(q[size_t(head) * kHeadDim + c]) * k[row + c];
      const double weight = std::exp(score / std::sqrt(double(kHeadDim)));
      denominator += weight;
      for (int c = 0; c < kHeadDim; ++c) o[c] += weight * v[row + c];
    }
    for (double& value : o) value /= denominator;
    return o;
  }
};

// Fills the cache in chunks; the last step stays open for the decode run.
void fill_cache(ld::KvCache& cache, Workload& workload) {
  auto sequence = cache.add_sequence();
  check(sequence.status(), "add_sequence");
  const ld::SequenceId sequences[] = {*sequence};
  for (int first = 0; first < kKvLen; first += kChunk) {
    const int32_t new_tokens[] = {kChunk};
    const size_t offset = size_t(first) * kNumKvHeads * kHeadDim;
    check(cache.reserve(sequences, new_tokens), "reserve");
    check(cache.append(0, view(&workload.k[offset], kChunk, kNumKvHeads),
                       view(&workload.v[offset], kChunk, kNumKvHeads), nullptr),
          "append");
    check(cache.commit(), "commit");
  }
}

}  // namespace

int main() {
  auto device = ld::detect_device(ld::DeviceType::kCpu);
  check(device.status(), "detect_device");
  Workload workload;

  const auto format =
      ld::KvFormat::gqa(ld::KeyEncoding::kTwoPlane, ld::DType::kBF16, kNumKvHeads, kHeadDim, 64);
  ld::KvCacheDesc cache_desc;
  cache_desc.format = format;
  cache_desc.num_pages = kKvLen / 64;
  cache_desc.max_kv_len = kKvLen;
  auto cache = ld::KvCache::create(cache_desc, *device);
  check(cache.status(), "KvCache::create");
  fill_cache(*cache, workload);

  ld::DecodeDesc desc;
  desc.method = ld::Method::kFfd;
  desc.format = format;
  desc.q_dtype = ld::DType::kF32;
  desc.num_q_heads = kNumQHeads;
  desc.max_kv_len = kKvLen;
  desc.ffd.delta = 10.0f;
  auto plan = ld::DecodePlan::create(desc, *device);
  check(plan.status(), "DecodePlan::create");
  std::vector<float> workspace(static_cast<size_t>(plan->workspace_bytes()) / sizeof(float) + 4);
  check(plan->init(workspace.data(), nullptr), "init");

  std::vector<float> o(workload.q.size());
  int64_t tokens_attended[kNumKvHeads] = {};
  int64_t bytes_read[kNumKvHeads] = {};
  float dropped_mass_bound[kNumQHeads] = {};
  ld::DecodeArgs args;
  args.q = view(workload.q.data(), 1, kNumQHeads);
  args.o = view(o.data(), 1, kNumQHeads);
  args.kv = cache->layer(0);
  args.batch = cache->step();
  args.batch.query_lens = nullptr;  // those of the last append; here one query token
  args.stats.tokens_attended = tokens_attended;
  args.stats.bytes_read = bytes_read;
  args.stats.dropped_mass_bound = dropped_mass_bound;
  check(plan->run(args, nullptr), "run");

  double max_error = 0.0;
  for (int head = 0; head < kNumQHeads; ++head) {
    const std::vector<double> expected = workload.exact(head);
    for (int c = 0; c < kHeadDim; ++c) {
      const double error = std::abs(expected[c] - o[size_t(head) * kHeadDim + c]);
      max_error = std::max(max_error, std::isnan(error) ? INFINITY : error);
    }
  }
  const double all_bytes = 2.0 * 2 * kHeadDim * kKvLen;  // K and V of one kv head in bf16
  std::printf("%s (%s), %d tokens\n", plan->kernel().name.c_str(), plan->kernel().isa.c_str(),
              kKvLen);
  for (int h = 0; h < kNumKvHeads; ++h) {
    std::printf("kv head %d: kept_fraction %.4f, %.1f%% of the bytes of dense attention\n", h,
                double(tokens_attended[h]) / kKvLen, 100.0 * double(bytes_read[h]) / all_bytes);
  }
  std::printf("dropped mass of head 0: at most about %.3f\n", double(dropped_mass_bound[0]));
  std::printf("largest difference to exact attention: %.4f\n", max_error);
  return max_error < 0.05 && tokens_attended[0] < kKvLen / 4 ? 0 : 1;
}
