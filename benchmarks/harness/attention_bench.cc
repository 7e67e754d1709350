#include "benchmarks/harness/attention_bench.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "benchmarks/harness/cache_fill.h"
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/memory.h"
#include "ops/backends.h"

namespace longdecode::bench {
namespace {

// Query and key width before absorption of the models that use MLA: 128 + 64 RoPE channels.
constexpr double kMlaScoreDim = 192.0;
constexpr double kMib = 1024.0 * 1024.0;

// Inputs are made on the host, whatever the device.
int32_t host_threads(const DeviceInfo& device) {
  return device.type == DeviceType::kCpu ? device.num_threads : omp_get_max_threads();
}

WorkloadSpec workload_spec(const ShapeSpec& shape, double kept) {
  const DecodeDesc desc = decode_desc(shape, Method::kDense);
  WorkloadSpec spec;
  spec.kind = shape.workload;
  spec.op = shape.op;
  spec.dtype = shape.dtype;
  spec.batch = shape.batch;
  spec.query_len = shape.query_len;
  spec.kv_len = shape.kv_len;
  spec.num_q_heads = shape.num_q_heads;
  spec.num_kv_heads = desc.format.num_kv_heads;
  spec.key_dim = desc.format.key_dim;
  spec.value_dim = desc.format.value_dim;
  spec.page_size = shape.page_size;
  spec.softmax_scale = desc.softmax_scale;
  spec.delta = shape.ffd.delta;
  spec.sink_tokens = shape.ffd.sink_tokens;
  spec.recent_tokens = shape.ffd.recent_tokens;
  spec.kept = kept;
  spec.near_threshold = shape.near_threshold;
  spec.seed = shape.seed;
  spec.sample = shape.sample;
  return spec;
}

// The distinct workloads of a shape, dense on the first.
std::vector<double> kept_values(const ShapeSpec& shape) {
  const bool plants = shape.workload != WorkloadKind::kDump;
  return shape.kept.empty() || !plants ? std::vector<double>{0.0} : shape.kept;
}

std::vector<float> margins(const ShapeSpec& shape) {
  return shape.margin_sigmas.empty() ? std::vector<float>{shape.ffd.margin_sigmas}
                                     : shape.margin_sigmas;
}

bool has(const ShapeSpec& shape, Method method) {
  return std::find(shape.methods.begin(), shape.methods.end(), method) != shape.methods.end();
}

int64_t num_rows(const ShapeSpec& shape) {
  return (has(shape, Method::kDense) ? 1 : 0) +
         (has(shape, Method::kFfd)
              ? static_cast<int64_t>(kept_values(shape).size() * margins(shape).size())
              : 0);
}

// The largest necessary_bytes of any row: everything attended.
int64_t most_necessary_bytes(const ShapeSpec& shape) {
  int64_t most = 0;
  for (const Method method : shape.methods) {
    const DecodeDesc desc = decode_desc(shape, method);
    const int64_t q_and_o = int64_t{shape.batch} * shape.query_len * shape.num_q_heads *
                            (desc.format.key_dim + desc.format.value_dim) *
                            dtype_bytes(shape.dtype);
    most = std::max(most, q_and_o + cache_bytes(desc.format, shape.batch, shape.kv_len));
  }
  return most;
}

// So that no count of bytes below is beyond 64 bits.
Status check_size(const ShapeSpec& shape) {
  constexpr double kMost = 0x1p56;
  const double heads = std::max(shape.num_q_heads, shape.num_kv_heads);
  const double values = double(shape.batch) * double(shape.kv_len) * heads *
                        double(std::max(shape.head_dim, kMlaKeyDim));
  if (values <= kMost) return {};
  return invalid_argument("batch {} x kv_len {} x {} heads is beyond any memory", shape.batch,
                          shape.kv_len, heads);
}

Status check_shape(const ShapeSpec& shape, const DeviceInfo& device) {
  if (shape.methods.empty()) return invalid_argument("method is empty; allowed: dense, ffd");
  LD_RETURN_IF_ERROR(check(workload_spec(shape, 0.0)));
  for (const double kept : shape.kept) LD_RETURN_IF_ERROR(check(workload_spec(shape, kept)));
  for (const Method method : shape.methods) {
    for (const float margin : margins(shape)) {
      ShapeSpec spec = shape;
      spec.ffd.margin_sigmas = margin;
      const DecodeDesc desc = decode_desc(spec, method);
      LD_RETURN_IF_ERROR(validate(desc.format));
      LD_ASSIGN_OR_RETURN(const KernelChoice choice, select_kernel(desc, device));
    }
  }
  return check_size(shape);
}

// What a shape takes at most, in bytes.
struct MemoryNeed {
  int64_t inputs = 0;   // host
  int64_t scratch = 0;  // host: the fp64 reference holds the scores of a few heads at a time, for
                        // every thread
  int64_t cache = 0;    // device, and host for the reference
};

MemoryNeed memory_need(const ShapeSpec& shape) {
  MemoryNeed need;
  for (const Method method : shape.methods) {
    need.cache = std::max(
        need.cache, cache_bytes(decode_desc(shape, method).format, shape.batch, shape.kv_len));
  }
  need.inputs = workload_bytes(workload_spec(shape, 0.0));
  need.scratch = 16 * int64_t{shape.num_q_heads} * shape.query_len * shape.kv_len;
  return need;
}

Status check_memory(const std::vector<ShapeSpec>& shapes, const DeviceInfo& device,
                    int64_t flush_bytes, int64_t floor_bytes) {
  const bool on_host = device.type == DeviceType::kCpu;
  const int64_t available = available_memory_bytes();
  for (const ShapeSpec& shape : shapes) {
    const MemoryNeed need = memory_need(shape);
    const double timer = double(flush_bytes) + double(floor_bytes);
    const double host = double(need.inputs + need.cache + need.scratch) + (on_host ? timer : 0.0);
    if (available >= 0 && host > double(available)) {
      return invalid_argument(
          "batch {} x kv_len {} needs {:.0f} MiB of memory (inputs {:.0f}, cache {:.0f}, reference "
          "{:.0f}, cache flush and read floor {:.0f}); available: {:.0f} MiB",
          shape.batch, shape.kv_len, host / kMib, double(need.inputs) / kMib,
          double(need.cache) / kMib, double(need.scratch) / kMib, on_host ? timer / kMib : 0.0,
          double(available) / kMib);
    }
    if (!on_host && double(need.cache) + timer > double(device.memory_bytes)) {
      return invalid_argument(
          "batch {} x kv_len {} needs {:.0f} MiB of device memory (cache {:.0f}, cache flush and "
          "read floor {:.0f}); the device has {:.0f} MiB",
          shape.batch, shape.kv_len, (double(need.cache) + timer) / kMib, double(need.cache) / kMib,
          timer / kMib, double(device.memory_bytes) / kMib);
    }
  }
  return {};
}

}  // namespace

DecodeDesc decode_desc(const ShapeSpec& shape, Method method) {
  const KeyEncoding keys = method == Method::kFfd ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain;
  DecodeDesc desc;
  desc.method = method;
  desc.format =
      KvFormat::gqa(keys, shape.dtype, shape.num_kv_heads, shape.head_dim, shape.page_size);
  auto score_dim = static_cast<double>(shape.head_dim);
  if (shape.op == Op::kMla) {
    desc.format = KvFormat::mla(shape.dtype, shape.page_size);
    desc.format.keys = keys;  // refused by validate() for FFD, with its reason
    score_dim = kMlaScoreDim;
  }
  desc.q_dtype = shape.dtype;
  desc.num_q_heads = shape.num_q_heads;
  desc.max_batch = shape.batch;
  desc.max_query_len = shape.query_len;
  desc.max_kv_len = shape.kv_len;
  desc.softmax_scale = static_cast<float>(1.0 / std::sqrt(score_dim));
  desc.ffd = shape.ffd;
  return desc;
}

Result<AttentionBench> AttentionBench::create(std::vector<ShapeSpec> shapes,
                                              const DeviceInfo& device, BenchOptions options) {
  if (options.num_reps.value_or(1) < 1) {
    return invalid_argument("reps is {}; allowed: 1 and more", *options.num_reps);
  }
  if (shapes.empty()) return invalid_argument("no shape to measure");
  const int64_t flush_bytes = options.flush_bytes.value_or(default_flush_bytes(device));
  if (flush_bytes < 0) {
    return invalid_argument("flush_bytes is {}; allowed: 0 and more", flush_bytes);
  }
  AttentionBench bench;
  LD_ASSIGN_OR_RETURN(bench.backend_, find_backend(device.type));
  int64_t floor_bytes = 0;
  for (ShapeSpec& shape : shapes) {
    LD_RETURN_IF_ERROR(check_shape(shape, device));
    floor_bytes = std::max(floor_bytes, most_necessary_bytes(shape));
    bench.num_rows_ += num_rows(shape);
    const KvFormat format = decode_desc(shape, Method::kDense).format;
    shape.num_kv_heads = format.num_kv_heads;
    shape.head_dim = format.key_dim;
  }
  LD_RETURN_IF_ERROR(check_memory(shapes, device, flush_bytes, floor_bytes));
  bench.shapes_ = std::move(shapes);
  bench.device_ = device;
  bench.options_ = std::move(options);
  bench.options_.progress(
      fmt::format("allocating {:.0f} MiB to flush the caches, {:.0f} MiB for "
                  "the read floor",
                  double(flush_bytes) / kMib, double(floor_bytes) / kMib));
  LD_ASSIGN_OR_RETURN(bench.timer_,
                      make_timer(device, bench.options_.timing, flush_bytes, floor_bytes));
  return bench;
}

Status AttentionBench::run_shape(const ShapeSpec& shape, std::vector<BenchRow>& rows) {
  bool dense_due = has(shape, Method::kDense);
  for (const double kept : kept_values(shape)) {
    if (!dense_due && !has(shape, Method::kFfd)) break;
    LD_ASSIGN_OR_RETURN(const Workload work,
                        make_workload(workload_spec(shape, kept), host_threads(device_)));
    MeasureContext context{work, *backend_, device_, options_, *timer_, {}};
    const auto add_row = [&](const ShapeSpec& spec, Method method,
                             std::optional<double> kept_planted) -> Status {
      options_.progress(fmt::format(
          "[{}/{}] {} batch {} query_len {} kv_len {} {}", rows.size() + 1, num_rows_,
          method == Method::kFfd ? "ffd" : "dense", shape.batch, shape.query_len, shape.kv_len,
          kept_planted ? fmt::format("kept {}", *kept_planted) : std::string("all")));
      BenchRow row;
      row.shape = spec;
      row.method = method;
      row.kept_planted = kept_planted;
      LD_RETURN_IF_ERROR(measure(decode_desc(spec, method), context, row));
      rows.push_back(std::move(row));
      return {};
    };
    if (std::exchange(dense_due, false)) LD_RETURN_IF_ERROR(add_row(shape, Method::kDense, {}));
    if (!has(shape, Method::kFfd)) continue;
    for (const float margin : margins(shape)) {
      ShapeSpec spec = shape;
      spec.ffd.margin_sigmas = margin;
      const bool plants = shape.workload != WorkloadKind::kDump;
      LD_RETURN_IF_ERROR(
          add_row(spec, Method::kFfd, plants ? std::optional<double>(kept) : std::nullopt));
    }
  }
  return {};
}

Result<std::vector<BenchRow>> AttentionBench::run() {
  std::vector<BenchRow> rows;
  for (const ShapeSpec& shape : shapes_) LD_RETURN_IF_ERROR(run_shape(shape, rows));
  return rows;
}

}  // namespace longdecode::bench
