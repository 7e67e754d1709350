#include "ops/overlap_checks.h"

#include <array>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode {
namespace {

bool holds(const Extent& outer, uintptr_t address) {
  return !outer.has_gaps && outer.begin <= address && address < outer.end;
}

bool surely_overlap(const Extent& a, const Extent& b) {
  if (a.begin == a.end || b.begin == b.end) return false;
  return a.begin == b.begin || holds(a, b.begin) || holds(b, a.begin);
}

// Elements up to the last row's first: how much of that row there is, the stride does not tell.
int64_t reach(int64_t num_rows, int64_t stride) {
  return stride > 0 ? (num_rows - 1) * stride + 1 : 0;
}

Extent plane_extent(const char* name, const uint8_t* plane, int64_t page_stride_bytes,
                    int64_t page_bytes, int64_t num_pages) {
  if (num_pages == 0) return {name};
  Extent extent = extent_of(name, plane, (num_pages - 1) * page_stride_bytes + page_bytes);
  extent.has_gaps = num_pages > 1 && page_stride_bytes != page_bytes;
  return extent;
}

std::array<Extent, 4> cache_extents(const KvLayerView& kv) {
  const KvFormat& format = kv.format;
  if (format.keys == KeyEncoding::kPlain) {
    return {extent_of("kv.k", kv.k),
            format.op == Op::kGqa ? extent_of("kv.v", kv.v) : Extent{"kv.v"}};
  }
  const int64_t heads = format.num_kv_heads;
  return {plane_extent("kv.chunks", kv.chunks, kv.chunk_page_stride_bytes,
                       heads * format.chunk_bytes(), kv.num_pages),
          plane_extent("kv.residuals", kv.residuals, kv.residual_page_stride_bytes,
                       heads * format.residual_bytes(), kv.num_pages),
          extent_of("kv.v", kv.v), extent_of("kv.recent_k", kv.recent_k)};
}

}  // namespace

Extent extent_of(const char* name, const TensorView& view) {
  int64_t count = 1;
  int64_t reach = 1;  // elements from the first to the last
  for (int32_t i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) return {name};
    if (view.shape[i] > 1 && view.stride[i] > 0) count *= view.shape[i];
    if (view.shape[i] > 1) reach += view.stride[i] * (view.shape[i] - 1);
  }
  Extent extent =
      extent_of(name, static_cast<const uint8_t*>(view.data), reach * dtype_bytes(view.dtype));
  extent.has_gaps = reach > count;
  return extent;
}

Status check_apart(std::span<const Extent> outputs, std::span<const Extent> inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const Extent& input : inputs) {
      if (!surely_overlap(outputs[i], input)) continue;
      return invalid_argument("{} overlaps {}; allowed: memory of its own", outputs[i].name,
                              input.name);
    }
    for (size_t j = 0; j < i; ++j) {
      if (!surely_overlap(outputs[i], outputs[j])) continue;
      return invalid_argument("{} overlaps {}; allowed: memory of its own", outputs[i].name,
                              outputs[j].name);
    }
  }
  return {};
}

Status check_apart(const DecodeArgs& args, const DecodeDesc& desc) {
  const int64_t batch = args.batch.batch;
  const int64_t heads = batch * desc.format.num_kv_heads;
  const int64_t rows = batch * args.query_len * desc.num_q_heads;
  const DecodeStats& stats = args.stats;
  const Extent outputs[] = {
      extent_of("o", args.o),
      extent_of("lse", args.lse, rows),
      extent_of("stats.tokens_scanned", stats.tokens_scanned, heads),
      extent_of("stats.tokens_attended", stats.tokens_attended, heads),
      extent_of("stats.bytes_read", stats.bytes_read, heads),
      extent_of("stats.pseudo_max", stats.pseudo_max, rows),
      extent_of("stats.dropped_mass_bound", stats.dropped_mass_bound, rows),
      extent_of("stats.kept_tiles", stats.kept_tiles, reach(heads, stats.kept_tiles_stride))};
  const Extent inputs[] = {extent_of("q", args.q),
                           extent_of("sink_logits", args.sink_logits, desc.num_q_heads),
                           extent_of("batch.kv_lens", args.batch.kv_lens, batch),
                           extent_of("batch.query_lens", args.batch.query_lens, batch),
                           extent_of("batch.slots", args.batch.slots, batch),
                           extent_of("batch.block_table", args.batch.block_table,
                                     reach(batch, args.batch.block_table_stride))};
  LD_RETURN_IF_ERROR(check_apart(outputs, inputs));
  return check_apart(outputs, cache_extents(args.kv));
}

Status check_apart(const AppendArgs& args) {
  const Extent inputs[] = {extent_of("k", args.k),
                           args.kv.format.op == Op::kGqa ? extent_of("v", args.v) : Extent{"v"}};
  return check_apart(cache_extents(args.kv), inputs);
}

Status check_apart(const MergeArgs& args) {
  const int64_t rows = args.num_rows;
  const Extent outputs[] = {extent_of("o", args.o, rows * args.dim),
                            extent_of("lse", args.lse, rows)};
  const Extent inputs[] = {
      extent_of("partial_o", args.partial_o, args.num_partials * rows * args.dim),
      extent_of("partial_lse", args.partial_lse, args.num_partials * rows)};
  return check_apart(outputs, inputs);
}

}  // namespace longdecode
