#include "benchmarks/harness/measure.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "benchmarks/harness/accuracy.h"
#include "benchmarks/harness/cache_fill.h"
#include "cache/device_buffer.h"

namespace longdecode::bench {
namespace {

int64_t view_elements(const TensorView& view) {
  int64_t count = 1;
  for (int32_t d = 0; d < view.rank; ++d) count *= view.shape[d];
  return count;
}

// Q, O, workspace and statistics of a run on the device.
struct RunBuffers {
  DeviceBuffer q, o, workspace, tokens_attended, kept_tiles;
  int64_t kept_tiles_stride = 0;

  static Result<RunBuffers> create(const Workload& work, int64_t workspace_bytes,
                                   const Backend& backend, const DeviceInfo& device) {
    const WorkloadSpec& spec = work.spec;
    const int64_t element = dtype_bytes(spec.dtype);
    const int64_t q_bytes = view_elements(work.q) * element;
    const int64_t heads = int64_t{spec.batch} * spec.num_kv_heads;
    RunBuffers buffers;
    buffers.kept_tiles_stride = (spec.kv_len + 32 * kTileTokens - 1) / (32 * kTileTokens);
    const auto make = [&](DeviceBuffer& buffer, int64_t num_bytes) -> Status {
      LD_ASSIGN_OR_RETURN(buffer,
                          DeviceBuffer::create(std::max<int64_t>(num_bytes, 64), backend, device));
      return {};
    };
    LD_RETURN_IF_ERROR(make(buffers.q, q_bytes));
    LD_RETURN_IF_ERROR(make(buffers.o, q_bytes / spec.key_dim * spec.value_dim));
    LD_RETURN_IF_ERROR(make(buffers.workspace, workspace_bytes));
    LD_RETURN_IF_ERROR(make(buffers.tokens_attended, heads * 8));
    LD_RETURN_IF_ERROR(make(buffers.kept_tiles, heads * buffers.kept_tiles_stride * 4));
    LD_RETURN_IF_ERROR(backend.copy(buffers.q.data(), work.q.data, q_bytes, device, nullptr));
    return buffers;
  }
};

// What the checked run left behind, in host memory.
struct HostResult {
  HostBuffer o;
  std::vector<int64_t> tokens_attended;  // [batch, num_kv_heads]
  std::vector<uint32_t> kept_tiles;      // [batch, num_kv_heads, stride]
};

Result<HostResult> fetch(const RunBuffers& buffers, const DecodeArgs& args,
                         const WorkloadSpec& spec, const Backend& backend,
                         const DeviceInfo& device) {
  HostResult result;
  const size_t heads = static_cast<size_t>(spec.batch) * static_cast<size_t>(spec.num_kv_heads);
  const int64_t o_bytes = view_elements(args.o) * dtype_bytes(spec.dtype);
  LD_ASSIGN_OR_RETURN(result.o, allocate_host(o_bytes));
  result.tokens_attended.resize(heads);
  result.kept_tiles.resize(heads * static_cast<size_t>(buffers.kept_tiles_stride));
  LD_RETURN_IF_ERROR(backend.copy(result.o.get(), buffers.o.data(), o_bytes, device, nullptr));
  LD_RETURN_IF_ERROR(backend.copy(result.tokens_attended.data(), buffers.tokens_attended.data(),
                                  static_cast<int64_t>(heads) * 8, device, nullptr));
  LD_RETURN_IF_ERROR(backend.copy(result.kept_tiles.data(), buffers.kept_tiles.data(),
                                  static_cast<int64_t>(result.kept_tiles.size()) * 4, device,
                                  nullptr));
  return result;
}

// The attended tiles of each sequence; an error when the kernel's two statistics disagree.
Result<std::vector<ref::TileSet>> attended_tiles(const HostResult& result, int64_t stride,
                                                 const WorkloadSpec& spec, BenchRow& row) {
  std::vector<ref::TileSet> tiles;
  int64_t total = 0;
  for (int32_t b = 0; b < spec.batch; ++b) {
    tiles.emplace_back(result.kept_tiles.data() + int64_t{b} * spec.num_kv_heads * stride, stride,
                       spec.num_kv_heads, spec.kv_len);
    const int64_t from_tiles = attended_tokens(tiles.back(), spec.num_kv_heads, spec.kv_len);
    int64_t counted = 0;
    for (int32_t head = 0; head < spec.num_kv_heads; ++head) {
      counted += result.tokens_attended[static_cast<size_t>(b * spec.num_kv_heads + head)];
    }
    if (counted != from_tiles) {
      return make_status(StatusCode::kInternal,
                         "sequence {}: the kernel counted {} attended tokens, its tiles hold {}", b,
                         counted, from_tiles);
    }
    total += counted;
  }
  row.kept_fraction = static_cast<double>(total) /
                      (static_cast<double>(spec.batch) * static_cast<double>(spec.num_kv_heads) *
                       static_cast<double>(spec.kv_len));
  return tiles;
}

// Checks the run that `args` describes and fills the error columns and necessary_bytes.
Status check_run(const DecodeDesc& desc, const DecodeArgs& args, const RunBuffers& buffers,
                 MeasureContext& context, BenchRow& row) {
  const WorkloadSpec& spec = context.work.spec;
  LD_ASSIGN_OR_RETURN(const HostResult result,
                      fetch(buffers, args, spec, context.backend, context.device));
  LD_ASSIGN_OR_RETURN(const HostLayer host,
                      HostLayer::create(args.kv, args.batch, context.backend, context.device));
  DecodeArgs host_args = args;
  host_args.q = context.work.q;
  host_args.o.data = result.o.get();
  host_args.kv = host.layer();
  host_args.batch = host.step();
  std::vector<ref::TileSet> tiles;
  if (desc.method == Method::kFfd) {
    LD_ASSIGN_OR_RETURN(tiles, attended_tiles(result, buffers.kept_tiles_stride, spec, row));
  }
  if (context.dense.empty()) context.dense = dense_reference(context.work, desc, host_args);
  const Accuracy accuracy = measure_accuracy(desc, host_args, tiles, context.dense);
  row.max_rel_err = accuracy.max_rel_err;
  row.err_dense = accuracy.err_dense;
  row.missed_exact = accuracy.missed_exact;
  row.max_rel_err_limit = max_rel_err_limit(spec.dtype);
  row.necessary_bytes =
      necessary_bytes(desc, spec.query_len,
                      std::vector<int64_t>(static_cast<size_t>(spec.batch), spec.kv_len), tiles);
  return {};
}

// Kernel and floor in turn, so that both see the same machine.
Status time_run(const Operation& operation, MeasureContext& context, BenchRow& row) {
  Timer& timer = context.timer;
  const int32_t num_reps = context.options.num_reps.value_or(default_reps(context.options.timing));
  std::vector<double> times, floors;
  for (int32_t rep = 0; rep < num_reps; ++rep) {
    LD_ASSIGN_OR_RETURN(const double time, timer.sample_us(operation));
    times.push_back(time);
    LD_ASSIGN_OR_RETURN(const double floor, timer.sample_us([&](StreamHandle stream) {
      return timer.read_floor(row.necessary_bytes, stream);
    }));
    floors.push_back(floor);
  }
  row.timing = timer.timing();
  row.l2 = timer.l2();
  row.time_us = median(times);
  row.time_us_min = *std::min_element(times.begin(), times.end());
  row.time_us_max = *std::max_element(times.begin(), times.end());
  row.read_floor_us = median(floors);
  context.options.progress(
      fmt::format("  {:.1f} us, read floor {:.1f} us, {} reps, each flush {:.1f} ms", row.time_us,
                  row.read_floor_us, num_reps, timer.flush_us() * 1e-3));
  return {};
}

}  // namespace

Status measure(const DecodeDesc& desc, MeasureContext& context, BenchRow& row) {
  const Workload& work = context.work;
  const WorkloadSpec& spec = work.spec;
  const Backend& backend = context.backend;
  LD_ASSIGN_OR_RETURN(KvCache cache, make_filled_cache(work, desc.format, backend, context.device));
  LD_ASSIGN_OR_RETURN(DecodePlan plan, DecodePlan::create(desc, context.device));
  LD_ASSIGN_OR_RETURN(RunBuffers buffers,
                      RunBuffers::create(work, plan.workspace_bytes(), backend, context.device));
  LD_RETURN_IF_ERROR(plan.init(buffers.workspace.data(), nullptr));
  row.kernel = plan.kernel().name + " " + plan.kernel().isa;

  DecodeArgs args;
  args.query_len = spec.query_len;
  args.q = work.q;
  args.q.data = buffers.q.data();
  args.o = TensorView::contiguous(buffers.o.data(), spec.dtype,
                                  {spec.batch, spec.query_len, spec.num_q_heads, spec.value_dim});
  args.kv = cache.layer(0);
  args.batch = cache.step();
  DecodeArgs checked = args;
  if (desc.method == Method::kFfd) {
    checked.stats.tokens_attended = reinterpret_cast<int64_t*>(buffers.tokens_attended.data());
    checked.stats.kept_tiles = reinterpret_cast<uint32_t*>(buffers.kept_tiles.data());
    checked.stats.kept_tiles_stride = buffers.kept_tiles_stride;
  }
  LD_RETURN_IF_ERROR(plan.run(checked, nullptr));
  LD_RETURN_IF_ERROR(check_run(desc, checked, buffers, context, row));
  return time_run([&](StreamHandle stream) { return plan.run(args, stream); }, context, row);
}

}  // namespace longdecode::bench
