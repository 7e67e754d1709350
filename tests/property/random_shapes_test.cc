// Random problems, seeded: whatever the suite's tables do not combine. Every problem is checked as
// in the op tests, and must give the same bits with another number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <random>

#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Plain arithmetic on mt19937: the distributions of <random> differ between libraries.
class Random {
 public:
  explicit Random(uint32_t seed) : rng_(seed) {}
  int32_t below(int32_t count) {
    return static_cast<int32_t>(rng_() % static_cast<uint32_t>(count));
  }
  int32_t between(int32_t first, int32_t last) { return first + below(last - first + 1); }
  bool percent(int32_t chance) { return below(100) < chance; }
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int32_t>(values.size()))];
  }
  template <typename T>
  T of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(static_cast<int32_t>(values.size())))];
  }

 private:
  std::mt19937 rng_;
};

// Around what a kernel may treat specially: pages, tiles, quantisation, splits; or anything.
int32_t random_kv_len(Random& random, int32_t page_size, int32_t longest) {
  const std::vector<int32_t> edges = {
      0, 1, 8, 16, page_size, page_size + 8, 2 * page_size, 3 * page_size + 8, 512, 1024, 2048};
  int32_t kv_len = random.below(longest);
  if (random.percent(60)) kv_len = random.of(edges) + random.between(-1, 1);
  return std::clamp(kv_len, 0, longest);
}

KvFormat random_format(Random& random, Op op, KeyEncoding keys) {
  const auto dtype = random.of({DType::kBF16, DType::kF16, DType::kF32});
  if (op == Op::kMla) return KvFormat::mla(dtype, random.of({16, 32, 64, 128}));
  const int32_t page_size =
      keys == KeyEncoding::kTwoPlane ? random.of({64, 128}) : random.of({1, 16, 32, 64, 128});
  return KvFormat::gqa(keys, dtype, random.between(1, 3), random.of({64, 80, 96, 128, 256}),
                       page_size);
}

void set_options(Random& random, DecodeDesc& desc) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  desc.causal = random.percent(75);
  desc.batch_invariant = random.percent(30);
  if (random.percent(30)) desc.soft_cap = random.of({0.5f, 4.0f, 50.0f});
  if (random.percent(30)) desc.learned_sinks = true;
  if (random.percent(40)) {
    desc.sliding_window =
        random.of({int64_t{1}, int64_t{2}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{130},
                   int64_t{700}, int64_t{kMaxInt32}, std::numeric_limits<int64_t>::max()});
  }
  desc.ffd.delta = random.of({0.0f, 0.5f, 3.0f, 5.0f, 40.0f, kInfinity});
  desc.ffd.margin_sigmas = random.of({0.0f, 0.0f, 1.0f, 3.0f});
  desc.ffd.certified = random.percent(25);
  desc.ffd.sink_tokens = random.of({0, 1, 16, 17, 100, 5000, kMaxInt32});
  desc.ffd.recent_tokens = random.of({0, 1, 15, 33, 100, 5000, kMaxInt32});
}

void set_keys(Random& random, ProblemSpec& spec) {
  const int32_t kind = random.below(12);
  const int32_t place = random.below(4096);
  const double scale = resolved_scale(spec.desc);
  spec.note = "keys " + std::to_string(kind) + " place " + std::to_string(place);
  spec.edit = [=](LogicalSequence& s, int32_t) {
    if (s.kv_len == 0) return;
    const auto channels = static_cast<size_t>(s.key_dim);
    if (kind == 0) std::fill(s.k.begin(), s.k.end(), 0.75f);
    for (size_t i = 0; i < s.k.size(); ++i) {
      if (kind == 1) s.k[i] += static_cast<float>(i % channels) - 50.0f;
      if (kind == 2 && i % channels % 32 == 5) s.k[i] *= 100.0f;
      if (kind == 3) s.k[i] *= 1e-4f;
    }
    if (kind == 4 && s.query_len > 0) {
      s.plant_score(place % s.kv_len, place % s.num_q_heads, 25.0, scale);
    }
    if (kind == 5) {
      for (int32_t c = 0; c < s.key_dim; ++c) s.key(place % s.kv_len, 0)[c] *= 1e3f;
    }
    if (kind == 6) std::fill(s.q.begin(), s.q.end(), 0.0f);
  };
}

ProblemSpec random_spec(uint32_t seed) {
  Random random(seed);
  const auto op = random.percent(20) ? Op::kMla : Op::kGqa;
  const auto keys =
      op == Op::kGqa && random.percent(60) ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain;
  ProblemSpec spec;
  spec.seed = seed;
  DecodeDesc& desc = spec.desc;
  desc.format = random_format(random, op, keys);
  const KvFormat& format = desc.format;
  const bool ffd = keys == KeyEncoding::kTwoPlane && random.percent(80);
  desc.method = ffd ? Method::kFfd : Method::kDense;
  desc.q_dtype =
      random.percent(70) ? format.dtype : random.of({DType::kBF16, DType::kF16, DType::kF32});
  desc.num_q_heads = op == Op::kMla ? random.between(1, 24)
                                    : format.num_kv_heads * random.of({1, 2, 3, 4, 5, 7, 8, 16});
  if (op == Op::kMla || random.percent(20)) desc.softmax_scale = random.of({0.07f, 0.2f, 1.0f});
  set_options(random, desc);
  const int32_t batch = random.between(1, 4);
  const int32_t longest = random.percent(15) ? sized(2600, 1100) : sized(500, 300);
  for (int32_t b = 0; b < batch; ++b) {
    spec.kv_lens.push_back(random_kv_len(random, format.page_size, longest));
  }
  spec.query_len = random.percent(50) ? 1 : random.between(2, kMaxQueryLen);
  if (random.percent(40)) {
    for (int32_t b = 0; b < batch; ++b) {
      spec.query_lens.push_back(random.between(0, spec.query_len));
    }
  }
  // More room than the problem needs changes how it is split.
  if (random.percent(30)) desc.max_kv_len = random.of({int64_t{4096}, int64_t{100000}});
  if (random.percent(30)) desc.max_batch = batch + 3;
  spec.score_deviation = random.of({0.01, 1.0, 3.0, 10.0});
  spec.page_order = random.of(
      {PageOrder::kInOrder, PageOrder::kScattered, PageOrder::kDescending, PageOrder::kScattered});
  spec.layout = random.of({PoolLayout::kHnd, PoolLayout::kNhd, PoolLayout::kInterleaved});
  spec.strided_q = random.percent(40);
  spec.garbage_unit_strides = random.percent(40);
  if (random.percent(30)) {
    const int32_t shortest = *std::min_element(spec.kv_lens.begin(), spec.kv_lens.end());
    // Of a two-plane cache only pages that every sequence has quantised are the same.
    spec.shared_pages = keys == KeyEncoding::kTwoPlane
                            ? static_cast<int32_t>(format.num_quantized_pages(shortest))
                            : shortest / format.page_size;
  }
  set_keys(random, spec);
  return spec;
}

std::string run_on_threads(uint32_t seed) {
  const ProblemSpec spec = random_spec(seed);
  const PagedProblem problem(spec);
  const auto threads = [](int32_t count) {
    RunOptions options;
    options.num_threads = count;
    options.num_runs = count;  // of one workspace
    return options;
  };
  const Outputs one = run_plan(problem.desc(), problem.args(), threads(1));
  std::string fault = check(problem, one);
  if (fault.empty()) {
    const Outputs more =
        run_plan(problem.desc(), problem.args(), threads(2 + static_cast<int32_t>(seed % 2)));
    fault = same_bits(one, more);
  }
  return fault.empty() ? "" : fault + "\nseed " + std::to_string(seed) + "\n" + problem.repro();
}

TEST(RandomShapes, QuickMatchTheReferenceOnAnyNumberOfThreads) {
  const char* first = std::getenv("LONGDECODE_TEST_SEED");
  const char* count = std::getenv("LONGDECODE_TEST_COUNT");
  const int32_t begin = first != nullptr ? std::atoi(first) : 1;
  const int32_t problems = count != nullptr ? std::atoi(count) : sized(120, 20);
  for (int32_t seed = begin; seed < begin + problems; ++seed) {
    const std::string fault = run_on_threads(static_cast<uint32_t>(seed));
    EXPECT_EQ(fault, "");
  }
}

}  // namespace
}  // namespace longdecode::testing
