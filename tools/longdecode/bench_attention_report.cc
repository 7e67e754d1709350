#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/dtype_name.h"
#include "bench_attention.h"
#include "build_info.h"
#include "session_options.h"

namespace longdecode::tool {
namespace {

using Json = nlohmann::ordered_json;

const char* op_name(Op op) { return op == Op::kMla ? "mla" : "gqa"; }
const char* method_name(Method method) { return method == Method::kFfd ? "ffd" : "dense"; }
const char* workload_name(bench::WorkloadKind kind) {
  switch (kind) {
    case bench::WorkloadKind::kPlanted:
      return "planted";
    case bench::WorkloadKind::kClustered:
      return "clustered";
    case bench::WorkloadKind::kDump:
      return "dump";
  }
  return "";
}
bool same_shape(const bench::ShapeSpec& a, const bench::ShapeSpec& b) {
  return a.op == b.op && a.batch == b.batch && a.query_len == b.query_len && a.kv_len == b.kv_len &&
         a.num_q_heads == b.num_q_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && a.dtype == b.dtype && a.page_size == b.page_size;
}

// Times faster than dense on the same shape in the same run; "-" without such a row.
std::string ratio_to_dense(const bench::BenchRow& row, const std::vector<bench::BenchRow>& rows) {
  for (const bench::BenchRow& other : rows) {
    if (other.method == Method::kDense && same_shape(other.shape, row.shape)) {
      return fmt::format("{:.2f}", other.time_us / row.time_us);
    }
  }
  return "-";
}

Json row_to_json(const bench::BenchRow& row, const DeviceInfo& device) {
  const bench::ShapeSpec& shape = row.shape;
  const Json kept_planted = row.kept_planted ? Json(*row.kept_planted) : Json(nullptr);
  return {{"op", op_name(shape.op)},
          {"method", method_name(row.method)},
          {"device", device_name(device.type)},
          {"device_name", device.name},
          {"num_threads", device.num_threads},
          {"kernel", row.kernel},
          {"batch", shape.batch},
          {"query_len", shape.query_len},
          {"kv_len", shape.kv_len},
          {"num_q_heads", shape.num_q_heads},
          {"num_kv_heads", shape.num_kv_heads},
          {"head_dim", shape.head_dim},
          {"dtype", dtype_name(shape.dtype)},
          {"page_size", shape.page_size},
          {"workload", workload_name(shape.workload)},
          {"source", shape.sample != nullptr ? Json(shape.sample->source) : Json(nullptr)},
          {"layer", shape.sample != nullptr ? Json(shape.sample->layer_idx) : Json(nullptr)},
          {"delta", shape.ffd.delta},
          {"margin_sigmas", shape.ffd.margin_sigmas},
          {"certified", shape.ffd.certified},
          {"near_threshold", shape.near_threshold},
          {"kept_planted", kept_planted},
          {"kept_fraction", row.kept_fraction},
          {"missed_exact", row.missed_exact},
          {"timing", row.timing},
          {"l2", row.l2},
          {"seed", shape.seed},
          {"time_us", row.time_us},
          {"time_us_min", row.time_us_min},
          {"time_us_max", row.time_us_max},
          {"necessary_bytes", row.necessary_bytes},
          {"gbps", row.gbps()},
          {"read_floor_us", row.read_floor_us},
          {"max_rel_err", row.max_rel_err},
          {"max_rel_err_limit", row.max_rel_err_limit},
          {"err_dense", row.err_dense},
          {"valid", row.valid()},
          {"commit", build_info().commit}};
}

}  // namespace

std::string rows_to_json(const std::vector<bench::BenchRow>& rows, const DeviceInfo& device) {
  Json array = Json::array();
  for (const bench::BenchRow& row : rows) array.push_back(row_to_json(row, device));
  return array.dump(2);
}

std::string rows_to_table(const std::vector<bench::BenchRow>& rows, const DeviceInfo& device) {
  std::string text = fmt::format(
      "{}, {} threads, commit {}, timing {}, caches {}\n", device.name, device.num_threads,
      build_info().commit, rows.empty() ? "" : rows[0].timing, rows.empty() ? "" : rows[0].l2);
  text += fmt::format(
      "{:4} {:6} {:>5} {:>9} {:>8} {:>7} {:>7} {:>10} {:>8} {:>7} {:>8} {:>9} {:>9} "
      "{:>8}\n",
      "op", "method", "batch", "query_len", "kv_len", "planted", "kept", "time us", "GB/s",
      "% floor", "x dense", "rel err", "err dense", "missed");
  for (const bench::BenchRow& row : rows) {
    text += fmt::format(
        "{:4} {:6} {:>5} {:>9} {:>8} {:>7} {:>7.4f} {:>10.1f} {:>8.2f} {:>7.1f} {:>8} {:>9.1e} "
        "{:>9.1e} {:>8.1e}{}\n",
        op_name(row.shape.op), method_name(row.method), row.shape.batch, row.shape.query_len,
        row.shape.kv_len, row.kept_planted ? fmt::format("{:g}", *row.kept_planted) : "-",
        row.kept_fraction, row.time_us, row.gbps(), 100.0 * row.read_floor_us / row.time_us,
        ratio_to_dense(row, rows), row.max_rel_err, row.err_dense, row.missed_exact,
        row.valid() ? "" : "  ABOVE THE ERROR LIMIT");
  }
  return text;
}

}  // namespace longdecode::tool
