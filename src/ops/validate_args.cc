#include <algorithm>
#include <cmath>
#include <compare>
#include <iterator>
#include <vector>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"
#include "ops/overlap_checks.h"
#include "ops/tensor_checks.h"
#include "ops/validate.h"

namespace longdecode {
namespace {

Status check_format(const KvFormat& given, const KvFormat& desc) {
  const auto check = [](const char* field, auto value, auto allowed) -> Status {
    if (value == allowed) return {};
    return invalid_argument("kv.format.{} is {}; allowed: {}, the descriptor's", field,
                            static_cast<int32_t>(value), static_cast<int32_t>(allowed));
  };
  LD_RETURN_IF_ERROR(check("op", given.op, desc.op));
  LD_RETURN_IF_ERROR(check("keys", given.keys, desc.keys));
  LD_RETURN_IF_ERROR(check("dtype", given.dtype, desc.dtype));
  LD_RETURN_IF_ERROR(check("num_kv_heads", given.num_kv_heads, desc.num_kv_heads));
  LD_RETURN_IF_ERROR(check("key_dim", given.key_dim, desc.key_dim));
  LD_RETURN_IF_ERROR(check("value_dim", given.value_dim, desc.value_dim));
  return check("page_size", given.page_size, desc.page_size);
}

// What the lengths of a batch may be.
struct LengthRules {
  int64_t max_kv_len = 0;
  int32_t default_query_len = 0;  // where query_lens is nullptr, and their maximum
  int64_t sliding_window = 0;     // 0: every page of a sequence is read
  bool query_within_kv = false;   // the query tokens are tokens of the sequence
  bool writes = false;            // append: only pages from the first new token on are touched
};

// The first token whose page the operation touches.
int64_t first_needed_token(const KvFormat& format, const LengthRules& rules, int64_t kv_len,
                           int64_t query_len) {
  if (rules.writes) {
    const int64_t old_len = kv_len - query_len;
    if (format.keys == KeyEncoding::kPlain) return old_len;
    return format.num_quantized_pages(old_len) * format.page_size;
  }
  if (rules.sliding_window == 0) return 0;
  return std::max<int64_t>(0, kv_len - query_len - rules.sliding_window + 1);
}

Status check_batch_arrays(const KvLayerView& kv, const BatchView& batch) {
  if (batch.kv_lens == nullptr) return invalid_argument("batch.kv_lens is null; allowed: [batch]");
  if (batch.block_table == nullptr) {
    return invalid_argument("batch.block_table is null; allowed: [batch, block_table_stride]");
  }
  if (batch.block_table_stride < 0 || !is_reachable(batch.batch, batch.block_table_stride)) {
    return invalid_argument(
        "batch.block_table_stride is {}; allowed: 0 or more, with {} rows that memory can hold",
        batch.block_table_stride, batch.batch);
  }
  if (kv.format.keys == KeyEncoding::kTwoPlane && batch.slots == nullptr) {
    return invalid_argument("batch.slots is null; a two-plane cache needs [batch]");
  }
  return {};
}

Status check_sequence(const KvLayerView& kv, const BatchView& batch, int32_t b,
                      const LengthRules& rules) {
  const int64_t kv_len = batch.kv_lens[b];
  if (kv_len < 0 || kv_len > rules.max_kv_len) {
    return invalid_argument("batch.kv_lens[{}] is {}; allowed: 0 to {}", b, kv_len,
                            rules.max_kv_len);
  }
  const int64_t query_len =
      batch.query_lens != nullptr ? batch.query_lens[b] : rules.default_query_len;
  const int64_t max_query_len = rules.query_within_kv
                                    ? std::min<int64_t>(rules.default_query_len, kv_len)
                                    : rules.default_query_len;
  if (query_len < 0 || query_len > max_query_len) {
    return invalid_argument("{}[{}] is {} (kv_len {}); allowed: 0 to {}",
                            batch.query_lens != nullptr ? "batch.query_lens" : "query_len", b,
                            query_len, kv_len, max_query_len);
  }
  if (kv_len == 0 || query_len == 0) return {};
  const int64_t pages = ceil_div(kv_len, kv.format.page_size);
  if (pages > batch.block_table_stride) {
    return invalid_argument("batch.block_table_stride is {}; batch.kv_lens[{}] = {} needs {}",
                            batch.block_table_stride, b, kv_len, pages);
  }
  const int64_t first_token = first_needed_token(kv.format, rules, kv_len, query_len);
  const int64_t pool_pages = num_pages(kv);
  const int32_t* table = batch.block_table + b * batch.block_table_stride;
  for (int64_t i = first_token / kv.format.page_size; i < pages; ++i) {
    if (table[i] < 0 || table[i] >= pool_pages) {
      return invalid_argument("batch.block_table[{}, {}] is {}; allowed: 0 to {}", b, i, table[i],
                              pool_pages - 1);
    }
  }
  if (kv.format.keys == KeyEncoding::kTwoPlane &&
      (batch.slots[b] < 0 || batch.slots[b] >= kv.recent_k.shape[0])) {
    return invalid_argument("batch.slots[{}] is {}; allowed: 0 to {}", b, batch.slots[b],
                            kv.recent_k.shape[0] - 1);
  }
  return {};
}

Status check_batch(const KvLayerView& kv, const BatchView& batch, const LengthRules& rules,
                   LengthAccess access) {
  LD_RETURN_IF_ERROR(check_batch_arrays(kv, batch));
  if (access == LengthAccess::kDeviceOnly) return {};
  for (int32_t b = 0; b < batch.batch; ++b) {
    LD_RETURN_IF_ERROR(check_sequence(kv, batch, b, rules));
  }
  return {};
}

// A place that a sequence's new tokens are written to: a page or a slot.
struct Written {
  int32_t place, sequence;
  int64_t entry;  // of the block table

  auto operator<=>(const Written&) const = default;
};

// The second of two that have the same place, or nullptr.
const Written* find_shared(std::vector<Written>& places) {
  std::sort(places.begin(), places.end());
  const auto same = [](const Written& a, const Written& b) { return a.place == b.place; };
  const auto found = std::adjacent_find(places.begin(), places.end(), same);
  return found == places.end() ? nullptr : &*std::next(found);
}

// Each sequence writes its new tokens to pages and a slot of its own. (Pages of earlier tokens may
// be shared, and are quantised by all with the same result.)
Status check_written_apart(const AppendArgs& args) {
  const BatchView& batch = args.batch;
  std::vector<Written> pages, slots;
  for (int32_t b = 0; b < batch.batch; ++b) {
    const int64_t new_tokens = batch.query_lens != nullptr ? batch.query_lens[b] : args.k.shape[1];
    if (batch.kv_lens[b] == 0 || new_tokens == 0) continue;
    const int64_t page_size = args.kv.format.page_size;
    const int64_t end = ceil_div(int64_t{batch.kv_lens[b]}, page_size);
    for (int64_t i = (batch.kv_lens[b] - new_tokens) / page_size; i < end; ++i) {
      pages.push_back({batch.block_table[b * batch.block_table_stride + i], b, i});
    }
    if (args.kv.format.keys == KeyEncoding::kTwoPlane) slots.push_back({batch.slots[b], b, 0});
  }
  if (const Written* shared = find_shared(pages)) {
    return invalid_argument(
        "batch.block_table[{}, {}] is {}, which new tokens are written to twice; allowed: a page "
        "of its own",
        shared->sequence, shared->entry, shared->place);
  }
  if (const Written* shared = find_shared(slots)) {
    return invalid_argument("batch.slots[{}] is {}, which another sequence has; allowed: its own",
                            shared->sequence, shared->place);
  }
  return {};
}

Status check_stats(const DecodeStats& stats, const BatchView& batch, const DecodeDesc& desc,
                   LengthAccess access) {
  if (stats.kept_tiles == nullptr) return {};
  int64_t max_kv_len = desc.max_kv_len;
  if (access == LengthAccess::kHost) {
    max_kv_len = *std::max_element(batch.kv_lens, batch.kv_lens + batch.batch);
  }
  const int64_t words = ceil_div(ceil_div(max_kv_len, kTileTokens), 32);
  const int64_t rows = int64_t{batch.batch} * desc.format.num_kv_heads;
  if (stats.kept_tiles_stride >= words && is_reachable(rows, stats.kept_tiles_stride)) return {};
  return invalid_argument("stats.kept_tiles_stride is {}; kv_len {} needs {} words",
                          stats.kept_tiles_stride, max_kv_len, words);
}

}  // namespace

Status validate(const DecodeArgs& args, const DecodeDesc& desc, LengthAccess access) {
  const BatchView& batch = args.batch;
  if (batch.batch < 0 || batch.batch > desc.max_batch) {
    return invalid_argument("batch.batch is {}; allowed: 0 to {} (max_batch)", batch.batch,
                            desc.max_batch);
  }
  if (batch.batch == 0) return {};
  if (args.query_len < 1 || args.query_len > desc.max_query_len) {
    return invalid_argument("query_len is {}; allowed: 1 to {} (max_query_len)", args.query_len,
                            desc.max_query_len);
  }
  LD_RETURN_IF_ERROR(check_format(args.kv.format, desc.format));
  const KvFormat& format = desc.format;
  LD_RETURN_IF_ERROR(
      check_tensor("q", args.q, {batch.batch, args.query_len, desc.num_q_heads, format.key_dim}));
  LD_RETURN_IF_ERROR(check_dtype("q", args.q.dtype, desc.q_dtype));
  LD_RETURN_IF_ERROR(check_tensor("o", args.o,
                                  {batch.batch, args.query_len, desc.num_q_heads, format.value_dim},
                                  TensorUse::kWritten));
  LD_RETURN_IF_ERROR(check_dtype("o", args.o.dtype, desc.q_dtype));
  LD_RETURN_IF_ERROR(check_kv_layer(args.kv));
  if (desc.learned_sinks != (args.sink_logits != nullptr)) {
    return invalid_argument("sink_logits is {} and learned_sinks is {}; allowed: both or neither",
                            args.sink_logits != nullptr ? "given" : "null", desc.learned_sinks);
  }
  const LengthRules rules{desc.max_kv_len, args.query_len, desc.sliding_window, false};
  LD_RETURN_IF_ERROR(check_batch(args.kv, batch, rules, access));
  LD_RETURN_IF_ERROR(check_stats(args.stats, batch, desc, access));
  return check_apart(args, desc);
}

Status validate(const AppendArgs& args, LengthAccess access) {
  const BatchView& batch = args.batch;
  if (batch.batch < 0)
    return invalid_argument("batch.batch is {}; allowed: 0 or more", batch.batch);
  if (batch.batch == 0) return {};
  LD_RETURN_IF_ERROR(check_kv_layer(args.kv, TensorUse::kWritten));
  const KvFormat& format = args.kv.format;
  LD_RETURN_IF_ERROR(
      check_tensor("k", args.k, {batch.batch, kAnySize, format.num_kv_heads, format.key_dim}));
  if (format.op == Op::kGqa) {
    LD_RETURN_IF_ERROR(check_tensor(
        "v", args.v, {batch.batch, args.k.shape[1], format.num_kv_heads, format.value_dim}));
  }
  LD_RETURN_IF_ERROR(check_apart(args));
  LengthRules rules;
  rules.max_kv_len = INT32_MAX;
  rules.default_query_len = static_cast<int32_t>(std::min<int64_t>(INT32_MAX, args.k.shape[1]));
  rules.query_within_kv = true;
  rules.writes = true;
  LD_RETURN_IF_ERROR(check_batch(args.kv, batch, rules, access));
  return access == LengthAccess::kHost ? check_written_apart(args) : Status();
}

Status validate(const PrefillArgs& args, LengthAccess access) {
  LD_RETURN_IF_ERROR(check_kv_layer(args.kv));
  const KvFormat& format = args.kv.format;
  LD_RETURN_IF_ERROR(check_tensor("q", args.q, {kAnySize, kAnySize, format.key_dim}));
  const int64_t num_tokens = args.q.shape[0];
  const int64_t num_q_heads = args.q.shape[1];
  if (num_q_heads < 1 || num_q_heads % format.num_kv_heads != 0) {
    return invalid_argument("q.shape[1] (num_q_heads) is {}; allowed: multiples of {}", num_q_heads,
                            format.num_kv_heads);
  }
  LD_RETURN_IF_ERROR(
      check_tensor("o", args.o, {num_tokens, num_q_heads, format.value_dim}, TensorUse::kWritten));
  LD_RETURN_IF_ERROR(check_dtype("o", args.o.dtype, args.q.dtype));
  const Extent o = extent_of("o", args.o);
  const Extent q = extent_of("q", args.q);
  LD_RETURN_IF_ERROR(check_apart({&o, 1}, {&q, 1}));
  if (!std::isfinite(args.softmax_scale) || args.softmax_scale <= 0.0f) {
    return invalid_argument("softmax_scale is {}; allowed: finite and above 0", args.softmax_scale);
  }
  if (!std::isfinite(args.soft_cap) || args.soft_cap < 0.0f) {
    return invalid_argument("soft_cap is {}; allowed: finite and above 0, or 0 for none",
                            args.soft_cap);
  }
  if (args.sliding_window < 0) {
    return invalid_argument("sliding_window is {}; allowed: 1 or more tokens, or 0 for none",
                            args.sliding_window);
  }
  if (args.batch.batch != 1) {
    return invalid_argument("batch.batch is {}; prefill allows 1", args.batch.batch);
  }
  LengthRules rules;
  rules.max_kv_len = INT32_MAX;
  rules.default_query_len = static_cast<int32_t>(std::min<int64_t>(INT32_MAX, num_tokens));
  rules.sliding_window = args.sliding_window;
  rules.query_within_kv = true;
  BatchView batch = args.batch;
  batch.query_lens = nullptr;  // the chunk is q's first dimension
  return check_batch(args.kv, batch, rules, access);
}

Status validate(const MergeArgs& args) {
  if (args.num_partials < 1) {
    return invalid_argument("num_partials is {}; allowed: 1 or more", args.num_partials);
  }
  if (args.num_rows < 0) {
    return invalid_argument("num_rows is {}; allowed: 0 or more", args.num_rows);
  }
  if (args.dim < 1) return invalid_argument("dim is {}; allowed: 1 or more", args.dim);
  if (args.num_rows == 0) return {};
  int64_t num_floats = 0;
  if (__builtin_mul_overflow(args.num_rows, args.dim, &num_floats) ||
      !is_reachable(int64_t{args.num_partials} + 1, num_floats)) {
    return invalid_argument(
        "num_partials is {}, num_rows {} and dim {}; allowed: a product that memory can hold",
        args.num_partials, args.num_rows, args.dim);
  }
  if (args.partial_o == nullptr || args.partial_lse == nullptr || args.o == nullptr) {
    return invalid_argument("{} is null; allowed: a pointer",
                            args.partial_o == nullptr     ? "partial_o"
                            : args.partial_lse == nullptr ? "partial_lse"
                                                          : "o");
  }
  return check_apart(args);
}

}  // namespace longdecode
