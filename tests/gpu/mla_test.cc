// The CUDA kernels of MLA decode against the fp64 reference: `mla_test [GROUP]`, GROUP being all,
// rest, small, exchange or contract, `mla_test matrix [STEP [FIRST]]`, cases FIRST, FIRST + STEP,
// ... so that STEP processes share it, or `mla_test one HEADS QUERY_LEN BATCH KV_LEN PAGE_SIZE`.
// Exit status 77 (skipped) where there is no device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "longdecode/attention.h"
#include "tests/gpu/mla_cases.h"

namespace longdecode::gpu_test {
namespace {

// Every `step`-th case of the matrix, from `first`. Every page size meets every variant.
void test_matrix(const DeviceInfo& device, int32_t step, int32_t first, Tally& tally) {
  constexpr int32_t kPages[] = {64, 16, 128, 32};
  int32_t number = 0;
  for (int32_t batch : {1, 2, 6, 64}) {
    for (int32_t query_len : {1, 2, 4}) {
      for (int32_t kv_len : {20, 140, 4096}) {
        for (int32_t heads : {1, 3, 9, 63, 64, 126, 128}) {
          for (int32_t variant = 0; variant < 16; ++variant, ++number) {
            if (number % step != first % step) continue;
            MlaCase c;
            c.query_len = query_len;
            c.num_heads = heads;
            c.page_size = kPages[(number / 16 + variant) % 4];
            c.causal = (variant & 1) != 0;
            const bool ragged = (variant & 2) != 0, peaked = (variant & 4) != 0;
            c.dtype = (variant & 8) != 0 ? DType::kF16 : DType::kBF16;
            c.rule = peaked ? peaked_rule(number) : smooth_rule(number);
            for (int32_t s = 0; s < batch; ++s) {
              c.kv_lens.push_back(ragged ? (kv_len * (s * 7 % 11 + 1) + s) / 11 : kv_len);
              if (ragged) c.query_lens.push_back(1 + s % query_len);
            }
            run_case(c, device, peaked ? peaked_tolerance(c.dtype) : smooth_tolerance(),
                     kv_len > 1000 ? 24 : 64, tally, "matrix");
          }
        }
      }
    }
  }
}

// Lengths around every boundary, kv_len 0, one long sequence beside short ones, strides.
void test_shapes(const DeviceInfo& device, Tally& tally) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int32_t page_size : {16, 32, 64, 128}) {
      for (int32_t heads : {1, 8, 16, 20, 24, 40, 64, 96, 128}) {
        for (int32_t query_len : {1, 3, 8}) {
          MlaCase c;
          c.dtype = dtype;
          c.page_size = page_size;
          c.num_heads = heads;
          c.query_len = query_len;
          c.kv_lens = {0,
                       1,
                       page_size - 1,
                       page_size,
                       page_size + 1,
                       2 * page_size - 1,
                       63,
                       64,
                       65,
                       127,
                       128,
                       129,
                       640,
                       1000,
                       0,
                       5000,
                       2047,
                       300,
                       5,
                       7};
          c.rule = peaked_rule(heads * 100 + query_len);
          c.row_padding = 64;
          c.page_stride_factor = 2;
          run_case(c, device, peaked_tolerance(dtype), 160, tally, "shapes");
          c.batch_invariant = true;
          c.max_batch = heads % 3 == 0 ? 40 : 20;
          run_case(c, device, peaked_tolerance(dtype), 160, tally, "shapes");
        }
      }
    }
  }
  MlaCase c;
  c.kv_lens.assign(6, 0);
  c.max_kv_len = 1000;
  run_case(c, device, peaked_tolerance(c.dtype), 16, tally, "all empty");
  c.kv_lens.assign(31, 65);
  c.kv_lens.push_back(20000);
  c.rule = peaked_rule(5);
  run_case(c, device, peaked_tolerance(c.dtype), 256, tally, "one long");
  c.kv_lens.assign(16, 4096);
  for (float scale : {1e5f / 20, 1e4f}) {  // scores to +-1e5: no sentinel, no overflow
    c.rule = peaked_rule(6);
    c.rule.q_scale = scale;
    c.rule.needle_every = 0;
    run_case(c, device, peaked_tolerance(c.dtype), 64, tally, "huge scores");
  }
}

// Sequences of two to eight tiles, which exchange weights instead of partial results: alone, beside
// equal ones and beside others.
void test_exchange(const DeviceInfo& device, Tally& tally) {
  const std::vector<std::vector<int32_t>> batches = {{512},
                                                     {449, 511},
                                                     {500, 0, 64, 512, 450, 1, 480, 4096},
                                                     std::vector<int32_t>(16, 497),
                                                     {65, 448, 130, 257, 321, 192, 385},
                                                     {128, 320, 256, 384}};
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int32_t page_size : {16, 32, 64, 128}) {
      for (int32_t heads : {1, 8, 12, 16, 20, 32}) {
        for (int32_t query_len : {1, 2, 4}) {
          if (heads * query_len > 64) continue;
          MlaCase c;
          c.dtype = dtype;
          c.page_size = page_size;
          c.num_heads = heads;
          c.query_len = query_len;
          c.rule = peaked_rule(heads * 10 + query_len);
          c.row_padding = 64;
          c.page_stride_factor = 2;
          for (size_t i = (heads + query_len) % 2; i < batches.size(); i += 2) {
            c.kv_lens = batches[i];
            run_case(c, device, peaked_tolerance(dtype), 160, tally, "exchange");
          }
        }
      }
    }
  }
}

void test_large(const DeviceInfo& device, Tally& tally) {
  MlaCase c;
  c.rule = peaked_rule(9);
  c.kv_lens = {3000, 70, 4096};
  c.num_pages = 70000;  // 5.2 GB: offsets beyond 32 bits, page ids beyond 2^16
  run_case(c, device, peaked_tolerance(c.dtype), 64, tally, "large pool");
  for (int32_t batch : {33, 100, 132, 133, 700, 5000, 70001}) {
    MlaCase many;
    many.num_heads = batch > 10000 ? 8 : 16;
    many.page_size = 16;
    many.rule = peaked_rule(batch);
    for (int32_t s = 0; s < batch; ++s) {
      many.kv_lens.push_back(s % 17 == 3 ? 0 : static_cast<int32_t>(s * 2654435761u % 150));
    }
    many.kv_lens[batch / 2] = 3000;
    run_case(many, device, peaked_tolerance(many.dtype), 512, tally, "large batch");
    if (batch <= 133) {
      many.num_heads = 128;
      run_case(many, device, peaked_tolerance(many.dtype), 512, tally, "large batch");
    }
  }
}

// Captured once, replayed after lengths, tables and contents have changed; same input, same bits.
void test_graph(const DeviceInfo& device, Tally& tally) {
  for (int32_t heads : {16, 128}) {
    for (int32_t batch : {3, 48}) {
      MlaCase c;
      c.num_heads = heads;
      c.max_kv_len = 9000;
      c.rule = peaked_rule(21);
      for (int32_t s = 0; s < batch; ++s) c.kv_lens.push_back(700 + s);
      c.num_pages = batch * 142;
      MlaWorkload workload(c, device);
      cudaStream_t stream;
      check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
      check_status(workload.run(stream), "warm up");
      check_cuda(cudaStreamSynchronize(stream), "warm up");
      cudaGraph_t graph;
      cudaGraphExec_t executable;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
      check_status(workload.run(stream), "capture");
      check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
      check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      for (int32_t round = 0; round < 4; ++round) {
        for (int32_t s = 0; s < batch; ++s) {
          c.kv_lens[s] = round == 3   ? 0
                         : round == 2 ? 512 - s
                                      : (s * 131 + round * 977) % (round == 1 ? 9000 : 90);
        }
        c.rule = peaked_rule(22 + round);
        workload.refill(c);
        std::vector<uint16_t> bits;
        for (int32_t repeat = 0; repeat < 3; ++repeat) {
          workload.poison_output();
          check_cuda(cudaGraphLaunch(executable, stream), "replay");
          check_cuda(cudaStreamSynchronize(stream), "replay");
          workload.fetch();
          if (repeat > 0) tally.count(bits == workload.raw_output(), "graph: bits differ");
          bits = workload.raw_output();
        }
        const Outcome outcome = check_workload(workload, peaked_tolerance(c.dtype), 96);
        tally.count(outcome.passed,
                    fmt::format("graph round {} {}: {}", round, c.describe(), outcome.failure));
      }
      check_cuda(cudaGraphExecDestroy(executable), "destroy");
      check_cuda(cudaGraphDestroy(graph), "destroy");
      check_cuda(cudaStreamDestroy(stream), "destroy");
    }
  }
}

// The first sequence alone and beside others: the same bits.
void test_batch_invariance(const DeviceInfo& device, Tally& tally) {
  for (int32_t heads : {16, 64}) {
    MlaCase c;
    c.num_heads = heads;
    c.batch_invariant = true;
    c.max_batch = 12;
    c.max_kv_len = 9000;
    c.rule = peaked_rule(31);
    c.kv_lens = {3777};
    MlaWorkload alone(c, device);
    c.kv_lens = {3777, 9, 4096, 0, 64, 9000};
    MlaWorkload together(c, device);
    for (MlaWorkload* workload : {&alone, &together}) {
      check_status(workload->run(nullptr), "run");
      check_cuda(cudaDeviceSynchronize(), "run");
      workload->fetch();
    }
    const bool same =
        std::memcmp(alone.raw_output().data(), together.raw_output().data(), heads * 512 * 2) == 0;
    tally.count(same, fmt::format("batch invariance, {} heads", heads));
  }
}

// NaN everywhere: it must end, give NaN, and leave the workspace ready for the next run.
void test_nan_input(const DeviceInfo& device, Tally& tally) {
  for (int32_t heads : {8, 16, 32, 64, 128}) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      MlaCase c;
      c.num_heads = heads;
      c.dtype = dtype;
      c.kv_lens = {4096, 0, 700};
      c.rule = peaked_rule(61);
      MlaWorkload workload(c, device);
      workload.poison_input();
      check_status(workload.run(nullptr), "run");
      check_cuda(cudaDeviceSynchronize(), "NaN input");
      workload.fetch();
      const uint16_t infinity = dtype == DType::kF16 ? 0x7c00 : 0x7f80;
      for (int32_t s : {0, 2}) {
        const uint16_t* output = workload.raw_output().data() + s * heads * 512;
        const float* lse = workload.raw_lse().data() + s * heads;
        tally.count(std::all_of(output, output + heads * 512,
                                [&](uint16_t bits) { return (bits & 0x7fff) > infinity; }),
                    fmt::format("NaN input {}: a finite output", c.describe()));
        tally.count(std::all_of(lse, lse + heads, [](float x) { return std::isnan(x); }),
                    fmt::format("NaN input {}: lse of {} is {}", c.describe(), s, lse[0]));
      }
      workload.refill(c);
      check_status(workload.run(nullptr), "run");
      check_cuda(cudaDeviceSynchronize(), "after NaN input");
      workload.fetch();
      const Outcome outcome = check_workload(workload, peaked_tolerance(dtype), 64);
      tally.count(outcome.passed,
                  fmt::format("after NaN input {}: {}", c.describe(), outcome.failure));
    }
  }
}

// A suite that a wrong kernel could pass would be worth nothing.
void test_mutants(const DeviceInfo& device, Tally& tally) {
  MlaCase c;
  c.query_len = 2;
  c.kv_lens = {500, 4096, 1000};
  c.rule = peaked_rule(41);
  MlaWorkload workload(c, device);
  check_status(workload.run(nullptr), "run");
  check_cuda(cudaDeviceSynchronize(), "run");
  workload.fetch();
  const Tolerance tolerance = peaked_tolerance(c.dtype);
  tally.count(check_workload(workload, tolerance, 64).passed, "mutants: the right kernel");
  for (Mutant mutant : {Mutant::kIgnoreQuery, Mutant::kDropRope, Mutant::kSkipLastPage,
                        Mutant::kDropSplit, Mutant::kIgnoreCausal}) {
    tally.count(!check_workload(workload, tolerance, 64, mutant).passed,
                fmt::format("mutant {} passes", static_cast<int>(mutant)));
  }
}

// RMSE for N(0, 1) inputs, where issue bounds are absolute.
void test_accuracy(const DeviceInfo& device, Tally& tally) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (int32_t kv_len : {4096, 65536}) {
      MlaCase c;
      c.dtype = dtype;
      c.kv_lens.assign(4, kv_len);
      c.rule.seed = 51;
      MlaWorkload workload(c, device);
      check_status(workload.run(nullptr), "run");
      check_cuda(cudaDeviceSynchronize(), "run");
      workload.fetch();
      const Outcome outcome = check_workload(workload, Tolerance{}, 32);
      const double bound = dtype == DType::kBF16 ? 3e-4 : kv_len == 65536 ? 1.25e-5 : 1.5e-5;
      std::printf("accuracy %s: RMSE %.3e, relative %.3e\n", c.describe().c_str(), outcome.rmse,
                  outcome.relative_rmse);
      tally.count(outcome.passed && outcome.rmse <= bound,
                  fmt::format("accuracy {}: RMSE {} above {}; {}", c.describe(), outcome.rmse,
                              bound, outcome.failure));
    }
  }
}

// One case from the command line: heads query_len batch kv_len page_size.
int run_one(const DeviceInfo& device, char** argv) {
  MlaCase c;
  c.num_heads = std::atoi(argv[0]);
  c.query_len = std::atoi(argv[1]);
  c.kv_lens.assign(std::atoi(argv[2]), std::atoi(argv[3]));
  c.page_size = std::atoi(argv[4]);
  c.rule = peaked_rule(3);
  Tally tally;
  run_case(c, device, peaked_tolerance(c.dtype), 64, tally, "one");
  std::printf("%s: %s\n", c.describe().c_str(), tally.failed == 0 ? "passed" : "failed");
  return tally.failed;
}

int run_all(const DeviceInfo& device, const std::string& what, int32_t step, int32_t first) {
  Tally tally;
  if (what == "small") test_matrix(device, 97, 0, tally);
  if (what == "rest" || what == "all" || what == "small") {
    test_mutants(device, tally);
    test_batch_invariance(device, tally);
    test_nan_input(device, tally);
  }
  if (what == "exchange" || what == "rest" || what == "all") {
    test_exchange(device, tally);
    test_graph(device, tally);
  }
  if (what == "contract" || what == "rest" || what == "all") test_contract(device, tally);
  if (what == "rest" || what == "all") {
    test_accuracy(device, tally);
    test_shapes(device, tally);
    test_large(device, tally);
  }
  if (what == "matrix" || what == "all") test_matrix(device, step, first, tally);
  std::printf("%s: %d passed, %d failed\n", what.c_str(), tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace longdecode::gpu_test

int main(int argc, char** argv) {
  const auto device = longdecode::detect_device(longdecode::DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  if (argc == 7 && std::strcmp(argv[1], "one") == 0) {
    return longdecode::gpu_test::run_one(*device, argv + 2);
  }
  return longdecode::gpu_test::run_all(*device, argc > 1 ? argv[1] : "all",
                                       argc > 2 ? std::max(1, std::atoi(argv[2])) : 1,
                                       argc > 3 ? std::max(0, std::atoi(argv[3])) : 0);
}
