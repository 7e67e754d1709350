// MLA decode on the GPU: `gpu_mla SET COMMIT OUT.json` with SET targets, sweep, all (both),
// short or wide. Every row has the read floor of the same run (a plain streaming read of as many
// bytes, same timing) and its error against the fp64 reference on sampled rows.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "benchmarks/gpu_timer/gpu_timer.h"
#include "longdecode/attention.h"
#include "tests/gpu/mla_check.h"

namespace longdecode::gpu_bench {
namespace {

using gpu_test::check_cuda;
using gpu_test::check_status;
using gpu_test::MlaCase;
using gpu_test::MlaWorkload;

// The largest shape reads 2.4 GB.
constexpr int64_t kMaxReadBytes = int64_t{3} << 30;

struct Shape {
  int32_t heads, batch, kv_len;
  double limit_us = 0;  // 0: none
  int32_t query_len = 1, page_size = 64;
  DType dtype = DType::kBF16;
  bool ragged = false;
};

std::vector<Shape> shapes_of(const std::string& set) {
  if (set == "short") {
    return {{16, 1, 512},      {16, 1, 4096, 11},    {16, 1, 16384}, {16, 1, 65536, 29},
            {16, 16, 512, 11}, {16, 16, 4096, 27.5}, {16, 32, 512}};
  }
  if (set == "wide") {
    return {{32, 16, 65536, 286},
            {40, 16, 65536, 286},
            {64, 16, 65536, 315},
            {128, 16, 65536, 475},
            {128, 16, 4096}};
  }
  if (set == "all") {
    std::vector<Shape> shapes = shapes_of("targets");
    for (const Shape& shape : shapes_of("sweep")) shapes.push_back(shape);
    return shapes;
  }
  if (set == "sweep") {
    std::vector<Shape> shapes;
    for (int32_t heads : {8, 16, 32}) {
      for (int32_t batch : {1, 16, 32}) {
        for (int32_t kv_len : {512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}) {
          shapes.push_back({heads, batch, kv_len});
        }
      }
    }
    return shapes;
  }
  std::vector<Shape> shapes = {{16, 16, 65536, 275},
                               {16, 32, 65536, 543},
                               {16, 16, 16384, 78},
                               {16, 16, 8192, 45},
                               {16, 16, 4096, 27.5},
                               {16, 16, 512, 11},
                               {16, 1, 65536, 29},
                               {16, 1, 4096, 11},
                               {16, 1, 512},
                               {16, 1, 16384},
                               {16, 32, 512},
                               {8, 16, 65536, 286},
                               {24, 16, 65536, 286},
                               {32, 16, 65536, 286},
                               {40, 16, 65536, 286},
                               {64, 16, 65536, 315},
                               {128, 16, 65536, 475},
                               {128, 16, 4096},
                               {64, 16, 4096},
                               {16, 16, 65536, 0, 2},
                               {16, 16, 65536, 0, 4},
                               {16, 16, 65536, 0, 1, 16},
                               {16, 16, 65536, 0, 1, 32},
                               {16, 16, 65536, 0, 1, 128},
                               {16, 16, 65536, 0, 1, 64, DType::kF16}};
  Shape ragged{16, 16, 16200};
  ragged.ragged = true;
  shapes.push_back(ragged);
  return shapes;
}

template <class T>
T checked(Result<T> result, const char* what) {
  check_status(result.status(), what);
  return std::move(result).value();
}

// The 64-bit finaliser of MurmurHash3.
uint32_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return static_cast<uint32_t>(x);
}

MlaCase case_of(const Shape& shape) {
  MlaCase c;
  c.num_heads = shape.heads;
  c.query_len = shape.query_len;
  c.page_size = shape.page_size;
  c.dtype = shape.dtype;
  c.rule.seed = 4242;
  c.kv_lens.assign(shape.batch, shape.kv_len);
  if (shape.ragged) {
    for (int32_t s = 0; s < shape.batch; ++s) {
      c.kv_lens[s] = 200 + static_cast<int32_t>(mix(4242 + s) % 16000);
    }
  }
  return c;
}

std::string measure_row(const Shape& shape, const DeviceInfo& device, GpuTimer& timer,
                        const std::string& commit) {
  const MlaCase c = case_of(shape);
  MlaWorkload workload(c, device);
  check_status(workload.run(timer.stream()), "run");
  check_cuda(cudaStreamSynchronize(timer.stream()), "run");
  workload.fetch();
  gpu_test::Tolerance tolerance;
  tolerance.relative_rmse = shape.dtype == DType::kF16 ? 1e-3 : 4e-3;
  const gpu_test::Outcome outcome = gpu_test::check_workload(workload, tolerance, 16);
  const GpuTimes times =
      checked(timer.measure([&](cudaStream_t stream) { return workload.run(stream); }), "run");
  const GpuTimes floor = checked(
      timer.measure([&](cudaStream_t stream) { return timer.read(workload.bytes(), stream); }),
      "read floor");
  std::printf(
      "heads %3d batch %2d kv_len %5d q %d page %3d %s%s: %7.2f us (min %7.2f, graph "
      "%7.2f) floor %7.2f (%7.2f) ratio %.3f%s  rel %.1e %s\n",
      shape.heads, shape.batch, shape.kv_len, shape.query_len, shape.page_size,
      shape.dtype == DType::kF16 ? "f16" : "bf16", shape.ragged ? " ragged" : "", times.events_us,
      times.events_min_us, times.graph_us, floor.events_us, floor.graph_us,
      times.events_us / floor.events_us,
      shape.limit_us > 0 ? fmt::format(" limit {}{}", shape.limit_us,
                                       times.events_us <= shape.limit_us ? "" : " ABOVE")
                               .c_str()
                         : "",
      outcome.relative_rmse, outcome.passed ? "" : outcome.failure.c_str());
  std::fflush(stdout);
  return fmt::format(
      R"({{"op": "mla_decode", "method": "dense", "kernel": "{} {}", )"
      R"("device": "{}", "commit": "{}", "num_q_heads": {}, "batch": {}, "kv_len": {}, )"
      R"("ragged": {}, "num_tokens": {}, "query_len": {}, "dtype": "{}", "page_size": {}, )"
      R"("seed": 4242, "kept_fraction": 1.0, "timing": "events", "l2": "cold", )"
      R"("time_us": {:.3f}, "time_us_min": {:.3f}, "graph_time_us": {:.3f}, )"
      R"("necessary_bytes": {}, "read_floor_us": {:.3f}, "graph_read_floor_us": {:.3f}, )"
      R"("relative_rmse": {:.3e}, "rmse": {:.3e}, "limit_us": {}, "valid": {}}})",
      workload.kernel().name, workload.kernel().isa, device.name, commit, shape.heads, shape.batch,
      shape.kv_len, shape.ragged,
      (workload.bytes() - int64_t{shape.batch} * shape.query_len * shape.heads * 2176) / 1152,
      shape.query_len, shape.dtype == DType::kF16 ? "f16" : "bf16", shape.page_size,
      times.events_us, times.events_min_us, times.graph_us, workload.bytes(), floor.events_us,
      floor.graph_us, outcome.relative_rmse, outcome.rmse, shape.limit_us, outcome.passed);
}

int run(const std::string& set, const std::string& commit, const char* path) {
  const Result<DeviceInfo> device = detect_device(DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  const auto timer = checked(GpuTimer::create(kDefaultFlushBytes, kMaxReadBytes), "timer");
  std::string json = "[\n";
  bool first = true;
  for (const Shape& shape : shapes_of(set)) {
    json += (first ? "" : ",\n") + measure_row(shape, *device, *timer, commit);
    first = false;
  }
  json += "\n]\n";
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr || std::fwrite(json.data(), 1, json.size(), file) != json.size()) {
    std::printf("cannot write %s\n", path);
    return 1;
  }
  std::fclose(file);
  return 0;
}

}  // namespace
}  // namespace longdecode::gpu_bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::printf("usage: gpu_mla targets|sweep|all|short|wide COMMIT OUT.json\n");
    return 1;
  }
  return longdecode::gpu_bench::run(argv[1], argv[2], argv[3]);
}
