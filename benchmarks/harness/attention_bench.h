// Measures decode attention: one row per (shape, method, kept share).
#ifndef LONGDECODE_BENCHMARKS_HARNESS_ATTENTION_BENCH_H_
#define LONGDECODE_BENCHMARKS_HARNESS_ATTENTION_BENCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/backend.h"
#include "benchmarks/harness/timing.h"
#include "benchmarks/harness/workload.h"
#include "longdecode/attention.h"

namespace longdecode::bench {

// One shape with every method and kept share to be measured on it. For MLA num_kv_heads and
// head_dim are not used: the format fixes them.
struct ShapeSpec {
  Op op = Op::kGqa;
  std::vector<Method> methods = {Method::kDense, Method::kFfd};
  std::vector<double> kept = {0.01};  // FFD only; dense is measured once, on the first one's data
  int32_t batch = 1;
  int32_t query_len = 1;
  int64_t kv_len = 16384;
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  DType dtype = DType::kBF16;
  int32_t page_size = 128;
  WorkloadKind workload = WorkloadKind::kPlanted;
  double near_threshold = 0.01;
  FfdOptions ffd;
  std::vector<float> margin_sigmas;  // each with every kept share; empty: the one of `ffd`
  uint64_t seed = 1;
  std::shared_ptr<const KvSample> sample;  // WorkloadKind::kDump: gives heads and head_dim
};

struct BenchOptions {
  Timing timing = Timing::kDefault;
  std::optional<int32_t> num_reps;     // none: default_reps
  std::optional<int64_t> flush_bytes;  // none: default_flush_bytes
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

struct BenchRow {
  ShapeSpec shape;  // num_kv_heads and head_dim as the kernel sees them
  Method method = Method::kDense;
  std::optional<double> kept_planted;  // none for dense, and where nothing is planted
  double kept_fraction = 1.0;          // from the kernel's own statistics
  double missed_exact = 0.0;
  std::string kernel;  // e.g. "cpu/ffd_decode avx512"
  std::string timing;
  std::string l2;
  double time_us = 0.0;  // median
  double time_us_min = 0.0;
  double time_us_max = 0.0;
  int64_t necessary_bytes = 0;
  double read_floor_us = 0.0;  // median
  double max_rel_err = 0.0;
  double max_rel_err_limit = 0.0;
  double err_dense = 0.0;

  double gbps() const { return static_cast<double>(necessary_bytes) / time_us * 1e-3; }
  bool valid() const { return max_rel_err <= max_rel_err_limit; }
};

// The descriptor of one method on a shape.
DecodeDesc decode_desc(const ShapeSpec& shape, Method method);

class AttentionBench {
 public:
  // Checks every shape against the device's kernels and the memory before any work.
  static Result<AttentionBench> create(std::vector<ShapeSpec> shapes, const DeviceInfo& device,
                                       BenchOptions options);
  Result<std::vector<BenchRow>> run();

 private:
  AttentionBench() = default;
  Status run_shape(const ShapeSpec& shape, std::vector<BenchRow>& rows);

  std::vector<ShapeSpec> shapes_;
  DeviceInfo device_;
  BenchOptions options_;
  const Backend* backend_ = nullptr;
  std::unique_ptr<Timer> timer_;
  int64_t num_rows_ = 0;
};

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_ATTENTION_BENCH_H_
