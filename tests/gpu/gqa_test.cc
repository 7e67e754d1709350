// Dense GQA decode on CUDA against the fp64 reference, with the checks of the op tests:
// `gqa_test [all|quick|sanitize] [sm_80]`. sm_80: the kernels for sm_80, whatever the GPU is. Exit
// status 77 (skipped) where there is no device.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/device_problem.h"
#include "tests/gpu/h200.h"
#include "tests/gpu/mla_workload.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

using gpu_test::check_cuda;
using gpu_test::check_status;

struct Tally {
  DeviceInfo device;
  bool is_sm80 = false;
  int passed = 0, failed = 0;

  // What the kernels serve.
  std::vector<int32_t> head_dims() const {
    return is_sm80 ? std::vector<int32_t>{128} : std::vector<int32_t>{64, 96, 128, 256};
  }
  std::vector<DType> dtypes() const {
    return is_sm80 ? std::vector<DType>{DType::kBF16}
                   : std::vector<DType>{DType::kBF16, DType::kF16};
  }
  // The wanted one, if there is one.
  int32_t head_dim(int32_t wanted) const { return is_sm80 ? 128 : wanted; }
  DType dtype(DType wanted) const { return is_sm80 ? DType::kBF16 : wanted; }

  void count(const std::string& fault, const std::string& what) {
    ++(fault.empty() ? passed : failed);
    if (!fault.empty() && failed <= 20) std::printf("FAILED %s: %s\n", what.c_str(), fault.c_str());
    std::fflush(stdout);
  }
  void run(const ProblemSpec& spec, const std::string& what) {
    count(run_and_check(spec,
                        [&](const DecodeDesc& desc, const DecodeArgs& args) {
                          return run_on_device(desc, args, device);
                        }),
          what);
  }
};

ProblemSpec dense_spec(DType dtype, int32_t group, int32_t num_kv_heads, int32_t head_dim,
                       int32_t page_size, std::vector<int32_t> kv_lens) {
  return gqa_spec(Method::kDense, dtype, group * num_kv_heads, num_kv_heads, head_dim, page_size,
                  std::move(kv_lens));
}

// Every head_dim, dtype and page size, lengths around every boundary; groups 1 to 16 in turn.
void test_shapes(Tally& tally, bool quick) {
  int32_t number = 0;
  for (const int32_t head_dim : tally.head_dims()) {
    for (const DType dtype : tally.dtypes()) {
      for (const int32_t page_size : {16, 32, 64, 128}) {
        for (const int32_t query_len : {1, 3, 8}) {
          const int32_t index = number++;
          if (quick && (index + query_len) % 5 != 0) continue;
          const int32_t group = 1 + index % 16;
          ProblemSpec spec = dense_spec(
              dtype, group, 1 + number % 3, head_dim, page_size,
              {0, 1, page_size - 1, page_size, page_size + 1, 63, 64, 65, 127, 129, 640, 1000});
          spec.query_len = query_len;
          spec.seed = number;
          spec.score_deviation = number % 3 == 0 ? 0.01 : number % 3 == 1 ? 1.0 : 3.0;
          spec.garbage_unit_strides = number % 2 == 0;
          spec.desc.batch_invariant = number % 4 == 0;
          tally.run(spec, "shapes");
        }
      }
    }
  }
  for (int32_t group = 1; group <= 16; ++group) {
    ProblemSpec spec = dense_spec(DType::kBF16, group, 2, 128, 64, {777, 130, 2049});
    spec.query_len = 1 + group % 8;
    tally.run(spec, "groups");
  }
}

void test_layouts(Tally& tally) {
  for (const int32_t head_dim : tally.head_dims()) {
    for (const PoolLayout layout : {PoolLayout::kHnd, PoolLayout::kNhd, PoolLayout::kInterleaved}) {
      ProblemSpec spec = dense_spec(DType::kBF16, 3, 2, head_dim, 32, {100, 7, 350});
      spec.layout = layout;
      spec.strided_q = true;
      spec.query_len = 2;
      tally.run(spec, "layouts");
    }
  }
}

void test_options(Tally& tally) {
  ProblemSpec ragged = dense_spec(DType::kBF16, 4, 2, 128, 16, {50, 51, 52, 0, 90, 400});
  ragged.query_len = 8;
  ragged.query_lens = {8, 1, 3, 0, 5, 8};
  for (const bool causal : {true, false}) {
    for (const int64_t window :
         {int64_t{0}, int64_t{1}, int64_t{17}, int64_t{130}, std::numeric_limits<int64_t>::max()}) {
      ProblemSpec spec = ragged;
      spec.desc.causal = causal;
      spec.desc.sliding_window = window;
      tally.run(spec, "ragged query lengths, windows");
      spec.desc.soft_cap = window % 2 == 0 ? 50.0f : 2.0f;
      spec.desc.learned_sinks = true;
      tally.run(spec, "soft cap, sinks");
    }
  }
  ProblemSpec window =
      dense_spec(tally.dtype(DType::kF16), 8, 2, tally.head_dim(64), 16, {3000, 4096, 513});
  window.desc.sliding_window = 700;  // the pages before it must not be read
  window.desc.learned_sinks = true;
  window.desc.batch_invariant = true;
  tally.run(window, "long window");
  for (const float level : {-3e4f, 1e3f, 6e4f}) {  // no sentinel, no overflow
    ProblemSpec spec = dense_spec(DType::kBF16, 1, 2, 128, 16, {150});
    const double scale = resolved_scale(spec.desc);
    spec.edit = [=](LogicalSequence& s, int32_t) {
      for (int32_t j = 0; j < s.kv_len; ++j) {
        for (int32_t h = 0; h < 2; ++h) s.plant_score(j, h, level + 50.0 * (j % 11 - 5), scale);
      }
    };
    tally.run(spec, "huge scores");
  }
}

// Long contexts beside short ones, batches beyond a window of 32 sequences, pools beyond 4 GiB.
void test_large(Tally& tally, bool quick) {
  ProblemSpec one_long = dense_spec(DType::kBF16, 4, 2, 128, 64, {});
  for (int i = 0; i < 31; ++i) one_long.kv_lens.push_back(65 + i);
  one_long.kv_lens.push_back(9000);
  tally.run(one_long, "one long");
  ProblemSpec high = dense_spec(DType::kBF16, 4, 8, 128, 128, {700, 129});
  high.page_order = PageOrder::kHighIds;
  tally.run(high, "large pool");
  for (const int32_t batch : {33, 132, 133, 700, 5000, 65539}) {
    if (quick && batch > 700) continue;
    ProblemSpec spec = dense_spec(DType::kBF16, batch > 10000 ? 1 : 5, batch > 10000 ? 1 : 2,
                                  tally.head_dim(64), 16, {});
    for (int32_t s = 0; s < batch; ++s) {
      const auto length = static_cast<int32_t>(s * 2654435761u % (batch > 10000 ? 25 : 150));
      spec.kv_lens.push_back(s % 17 == 3 ? 0 : length);
    }
    spec.kv_lens[batch / 2] = 3000;
    tally.run(spec, fmt::format("batch {}", batch));
  }
}

// Captured once, replayed after lengths, tables and contents have changed.
void test_graph(Tally& tally) {
  for (const int32_t batch : {3, 40}) {
    ProblemSpec first_spec = dense_spec(DType::kBF16, 4, 2, 128, 64, {});
    for (int32_t s = 0; s < batch; ++s) first_spec.kv_lens.push_back(700 + s);
    first_spec.kv_lens.back() = 1000;  // the longest of both: equal tables
    ProblemSpec second_spec = first_spec;
    std::reverse(second_spec.kv_lens.begin(), second_spec.kv_lens.end());
    second_spec.kv_lens[1] -= 600;
    second_spec.kv_lens[2] += 200;
    second_spec.seed = 2;
    const PagedProblem first(first_spec), second(second_spec);
    DecodeArgs base = first.args();
    base.kv.k.shape[0] = base.kv.v.shape[0] = base.kv.num_pages =
        std::max(first.args().kv.num_pages, second.args().kv.num_pages);
    CapturedRun captured(tally.device);
    for (const PagedProblem* problem : {&first, &second, &first}) {
      const auto replay = [&](const DecodeDesc& desc, const DecodeArgs& host) {
        return captured.run(desc, host, base.kv);
      };
      Outputs outputs = run_with(problem->desc(), problem->args(), replay);
      set_weight_rounding(DType::kBF16, &outputs);
      tally.count(check(*problem, outputs), fmt::format("graph, batch {}", batch));
    }
  }
}

// A sequence's bits alone, among others, and with other query lengths of the run.
void test_batch_invariance(Tally& tally) {
  for (const int32_t head_dim : tally.head_dims()) {
    ProblemSpec many = dense_spec(DType::kBF16, 4, 2, head_dim, 64, {300, 5, 1500, 64, 900});
    many.desc.batch_invariant = true;
    many.desc.max_batch = 8;
    many.desc.max_kv_len = 1500;
    ProblemSpec alone = many;
    alone.kv_lens = {1500};
    alone.stream_ids = {2};
    const PagedProblem a(many), b(alone);
    const Outputs of_many = run_on_device(a.desc(), a.args(), tally.device);
    const Outputs of_one = run_on_device(b.desc(), b.args(), tally.device);
    tally.count(check(a, of_many) + same_bits(of_many, 2, of_one, 0), "batch invariance");
  }
}

// Wrong kernels, made from the right one: every one must be found.
void test_mutants(Tally& tally) {
  ProblemSpec spec = dense_spec(DType::kBF16, 4, 2, 128, 64, {1000, 300});
  spec.query_len = 4;
  using Edit = void (*)(DecodeDesc&, DecodeArgs&, std::vector<int32_t>&);
  const std::pair<const char*, Edit> mutants[] = {
      {"Q ignored",
       [](DecodeDesc& desc, DecodeArgs&, std::vector<int32_t>&) { desc.softmax_scale = 1e-20f; }},
      {"last page skipped",
       [](DecodeDesc&, DecodeArgs&, std::vector<int32_t>& lens) {
         for (int32_t& x : lens) x -= x % 64;
       }},
      {"one split dropped",
       [](DecodeDesc&, DecodeArgs&, std::vector<int32_t>& lens) { lens[0] -= 128; }},
      {"causal mask ignored",
       [](DecodeDesc& desc, DecodeArgs&, std::vector<int32_t>&) { desc.causal = false; }},
      {"first tokens hidden",
       [](DecodeDesc& desc, DecodeArgs&, std::vector<int32_t>&) { desc.sliding_window = 990; }},
  };
  for (const auto& [name, edit] : mutants) {
    const PagedProblem problem(spec);
    DecodeDesc desc = problem.desc();
    DecodeArgs args = problem.args();
    std::vector<int32_t> lens(args.batch.kv_lens, args.batch.kv_lens + args.batch.batch);
    edit(desc, args, lens);
    args.batch.kv_lens = lens.data();
    const std::string fault = check(problem, run_on_device(desc, args, tally.device));
    tally.count(fault.empty() ? "a wrong kernel passes" : "", fmt::format("mutant {}", name));
  }
}

// Combinations that no table has.
void test_random(Tally& tally, int32_t count) {
  for (int32_t seed = 0; seed < count; ++seed) {
    std::mt19937 rng(seed);
    const auto below = [&](int32_t n) {
      return static_cast<int32_t>(rng() % static_cast<uint32_t>(n));
    };
    constexpr int32_t kDims[] = {64, 96, 128, 256}, kPages[] = {16, 32, 64, 128};
    const DType dtype = tally.dtype(below(2) == 0 ? DType::kBF16 : DType::kF16);
    const int32_t group = 1 + below(16), num_kv_heads = 1 + below(3);
    const int32_t head_dim = tally.head_dim(kDims[below(4)]);
    ProblemSpec spec = dense_spec(dtype, group, num_kv_heads, head_dim, kPages[below(4)], {});
    spec.seed = seed;
    spec.query_len = 1 + below(8);
    for (int32_t s = 1 + below(6); s > 0; --s) {
      spec.kv_lens.push_back(below(below(4) == 0 ? 2600 : 300));
    }
    if (below(3) == 0) {
      for (size_t s = 0; s < spec.kv_lens.size(); ++s) {
        spec.query_lens.push_back(below(spec.query_len + 1));
      }
    }
    spec.desc.causal = below(4) != 0;
    spec.desc.batch_invariant = below(3) == 0;
    spec.desc.learned_sinks = below(3) == 0;
    if (below(3) == 0) spec.desc.soft_cap = below(2) == 0 ? 0.5f : 30.0f;
    if (below(3) == 0) spec.desc.sliding_window = 1 + below(700);
    spec.strided_q = below(2) == 0;
    spec.layout = static_cast<PoolLayout>(below(3));
    tally.run(spec, "random");
  }
}

// A few cases of every kind of instance and schedule, for compute-sanitizer.
void test_few(Tally& tally) {
  for (const int32_t head_dim : tally.head_dims()) {
    for (const bool batch_invariant : {false, true}) {
      ProblemSpec spec = dense_spec(head_dim == 96 ? DType::kF16 : DType::kBF16, 5, 2, head_dim,
                                    head_dim == 128 ? 16 : 64, {0, 333, 64, 1});
      spec.query_len = batch_invariant ? 8 : 1;  // 5 row groups, or 1
      spec.desc.batch_invariant = batch_invariant;
      spec.desc.learned_sinks = true;
      if (head_dim == 64) spec.desc.sliding_window = 100;
      tally.run(spec, "few");
    }
  }
  ProblemSpec many =
      dense_spec(DType::kBF16, 4, 1, tally.head_dim(64), 16, std::vector<int32_t>(40, 20));
  many.kv_lens[7] = 700;
  tally.run(many, "few, many sequences");
}

int run_all(const std::string& what, bool is_sm80) {
  const Result<DeviceInfo> device = detect_device(DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  Tally tally{is_sm80 ? as_sm80(*device) : *device, is_sm80};
  const bool quick = what == "quick";
  const auto timed = [&](const char* name, const auto& test) {
    const auto start = std::chrono::steady_clock::now();
    test();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s: %d passed, %d failed so far, %.1f s\n", name, tally.passed, tally.failed,
                seconds.count());
    std::fflush(stdout);
  };
  if (what == "sanitize") {
    timed("few", [&] { test_few(tally); });
    return tally.failed == 0 ? 0 : 1;
  }
  timed("mutants", [&] { test_mutants(tally); });
  timed("shapes", [&] { test_shapes(tally, quick); });
  timed("layouts", [&] { test_layouts(tally); });
  timed("options", [&] { test_options(tally); });
  timed("graph", [&] { test_graph(tally); });
  timed("batch invariance", [&] { test_batch_invariance(tally); });
  timed("large", [&] { test_large(tally, quick); });
  timed("random", [&] { test_random(tally, quick ? 20 : 300); });
  std::printf("%s: %d passed, %d failed\n", what.c_str(), tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longdecode::testing

int main(int argc, char** argv) {
  const bool is_sm80 = argc > 1 && std::string(argv[argc - 1]) == "sm_80";
  return longdecode::testing::run_all(argc > 1 + is_sm80 ? argv[1] : "all", is_sm80);
}
