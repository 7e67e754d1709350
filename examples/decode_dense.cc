// Dense decode attention over a paged cache: one sequence, grouped query heads, checked against the
// textbook formula. Exits with 1 when the result is wrong.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "longdecode/longdecode.h"

namespace ld = longdecode;

namespace {

constexpr int kNumQHeads = 4;
constexpr int kNumKvHeads = 2;
constexpr int kHeadDim = 64;
constexpr int kKvLen = 1000;

// Ends the program when a call failed; an application would pass the Status on.
void check(const ld::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  std::exit(1);
}

// Workspace and tensors must be 16-byte aligned; std::vector<float> is.
std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

// o = sum_j softmax(q . k_j / sqrt(head_dim))_j v_j of one query head, in double.
std::vector<double> textbook(const float* q, const std::vector<float>& k,
                             const std::vector<float>& v, int kv_head) {
  std::vector<double> o(kHeadDim, 0.0);
  double denominator = 0.0;
  for (int j = 0; j < kKvLen; ++j) {
    const size_t row = static_cast<size_t>(j * kNumKvHeads + kv_head) * kHeadDim;
    double score = 0.0;
    for (int c = 0; c < kHeadDim; ++c) score += double(q[c]) * k[row + c];
    const double weight = std::exp(score / std::sqrt(double(kHeadDim)));
    denominator += weight;
    for (int c = 0; c < kHeadDim; ++c) o[c] += weight * v[row + c];
  }
  for (double& value : o) value /= denominator;
  return o;
}

}  // namespace

int main() {
  auto device = ld::detect_device(ld::DeviceType::kCpu);
  check(device.status(), "detect_device");

  const auto format =
      ld::KvFormat::gqa(ld::KeyEncoding::kPlain, ld::DType::kF32, kNumKvHeads, kHeadDim, 64);
  ld::KvCacheDesc cache_desc;
  cache_desc.format = format;
  cache_desc.num_pages = 32;
  cache_desc.max_kv_len = 2048;
  auto cache = ld::KvCache::create(cache_desc, *device);
  check(cache.status(), "KvCache::create");

  ld::DecodeDesc desc;
  desc.format = format;
  desc.q_dtype = ld::DType::kF32;
  desc.num_q_heads = kNumQHeads;
  desc.max_kv_len = 2048;
  auto plan = ld::DecodePlan::create(desc, *device);
  check(plan.status(), "DecodePlan::create");
  std::vector<float> workspace(static_cast<size_t>(plan->workspace_bytes()) / sizeof(float) + 4);
  check(plan->init(workspace.data(), nullptr), "init");

  // One step that appends all tokens; a decode loop appends one at a time.
  std::vector<float> k = random_values(size_t{kKvLen} * kNumKvHeads * kHeadDim, 1);
  std::vector<float> v = random_values(k.size(), 2);
  std::vector<float> q = random_values(size_t{kNumQHeads} * kHeadDim, 3);
  std::vector<float> o(q.size());
  std::vector<float> lse(kNumQHeads);
  auto sequence = cache->add_sequence();
  check(sequence.status(), "add_sequence");
  const ld::SequenceId sequences[] = {*sequence};
  const int32_t new_tokens[] = {kKvLen};
  check(cache->reserve(sequences, new_tokens), "reserve");
  const auto view = [](std::vector<float>& data, int64_t tokens, int64_t heads) {
    return ld::TensorView::contiguous(data.data(), ld::DType::kF32, {1, tokens, heads, kHeadDim});
  };
  check(cache->append(0, view(k, kKvLen, kNumKvHeads), view(v, kKvLen, kNumKvHeads), nullptr),
        "append");
  ld::DecodeArgs args;
  args.q = view(q, 1, kNumQHeads);
  args.o = view(o, 1, kNumQHeads);
  args.lse = lse.data();
  args.kv = cache->layer(0);
  args.batch = cache->step();
  // The step's query_lens count the appended tokens; here there is one query token.
  args.batch.query_lens = nullptr;
  check(plan->run(args, nullptr), "run");
  check(cache->commit(), "commit");

  double max_error = 0.0;
  for (int head = 0; head < kNumQHeads; ++head) {
    const auto expected =
        textbook(&q[size_t(head) * kHeadDim], k, v, head / (kNumQHeads / kNumKvHeads));
    for (int c = 0; c < kHeadDim; ++c) {
      const double error = std::abs(expected[c] - o[size_t(head) * kHeadDim + c]);
      max_error = std::max(max_error, std::isnan(error) ? INFINITY : error);
    }
  }
  std::printf("%s (%s): %d tokens, lse of head 0 %.4f, largest error %.2g\n",
              plan->kernel().name.c_str(), plan->kernel().isa.c_str(), kKvLen, double(lse[0]),
              max_error);
  return max_error < 1e-5 ? 0 : 1;
}
