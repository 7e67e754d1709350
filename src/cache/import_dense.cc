#include "cache/import_dense.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"
#include "ops/tensor_checks.h"

namespace longdecode {
namespace {

// Elements from one token to the next within a page; pages of one token follow each other.
int64_t token_stride(const TensorView& pool) {
  return pool.shape[2] == 1 ? pool.stride[0] : pool.stride[2];
}

bool pages_are_adjacent(const TensorView& pool) {
  return pool.shape[0] > 1 && pool.stride[0] == pool.shape[2] * token_stride(pool);
}

Status check_pool(const std::string& name, const TensorView& pool, const KvFormat& format,
                  int64_t page_size, int32_t dim) {
  LD_RETURN_IF_ERROR(check_tensor(name, pool, {kAnySize, format.num_kv_heads, page_size, dim}));
  if (pool.shape[0] < 1 || pool.shape[2] < 1) {
    return invalid_argument("{}.shape is [{}, {}, {}, {}]; allowed: 1 or more pages and tokens",
                            name, pool.shape[0], pool.shape[1], pool.shape[2], pool.shape[3]);
  }
  return {};
}

}  // namespace

Status validate_import(const KvFormat& format, int32_t num_layers, std::span<const PagedKv> layers,
                       std::span<const int32_t> block_table, int64_t kv_len) {
  if (layers.size() != static_cast<size_t>(num_layers)) {
    return invalid_argument("layers has {} elements; allowed: num_layers, {}", layers.size(),
                            num_layers);
  }
  const int64_t page_size = layers[0].k.shape[2];
  int64_t num_pages = layers[0].k.shape[0];
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto check = [&](const char* name, const TensorView& pool, int32_t dim) {
      num_pages = std::min(num_pages, pool.shape[0]);
      return check_pool(fmt::format("layers[{}].{}", l, name), pool, format,
                        l == 0 && name[0] == 'k' ? kAnySize : page_size, dim);
    };
    LD_RETURN_IF_ERROR(check("k", layers[l].k, format.key_dim));
    if (format.op == Op::kGqa) LD_RETURN_IF_ERROR(check("v", layers[l].v, format.value_dim));
  }
  if (kv_len < 0) return invalid_argument("kv_len is {}; allowed: 0 or more", kv_len);
  const int64_t needed = ceil_div(kv_len, page_size);
  if (static_cast<int64_t>(block_table.size()) < needed) {
    return invalid_argument("block_table has {} pages; {} tokens in pages of {} need {}",
                            block_table.size(), kv_len, page_size, needed);
  }
  for (int64_t i = 0; i < needed; ++i) {
    if (block_table[i] < 0 || block_table[i] >= num_pages) {
      return invalid_argument("block_table[{}] is {}; allowed: 0 to {}", i, block_table[i],
                              num_pages - 1);
    }
  }
  return {};
}

int64_t import_run_tokens(const KvFormat& format, std::span<const PagedKv> layers,
                          std::span<const int32_t> block_table, int64_t token, int64_t kv_len) {
  const int64_t page_size = layers[0].k.shape[2];
  const bool adjacent = std::all_of(layers.begin(), layers.end(), [&](const PagedKv& layer) {
    return pages_are_adjacent(layer.k) && (format.op == Op::kMla || pages_are_adjacent(layer.v));
  });
  const int64_t limit = std::min(kv_len, token + kMaxImportTokens);
  int64_t page = token / page_size;
  int64_t end = (page + 1) * page_size;
  while (adjacent && end < limit && block_table[page + 1] == block_table[page] + 1) {
    ++page;
    end += page_size;
  }
  return std::min(end, limit) - token;
}

TensorView import_run_view(const TensorView& pool, std::span<const int32_t> block_table,
                           int64_t token, int64_t num_tokens) {
  const int64_t page_size = pool.shape[2];
  const int64_t page = block_table[token / page_size];
  const int64_t page_offset = pool.shape[0] == 1 ? 0 : page * pool.stride[0];
  const int64_t token_in_page = token % page_size;
  TensorView view;
  view.dtype = pool.dtype;
  view.rank = 4;
  view.data = static_cast<uint8_t*>(pool.data) +
              (page_offset + token_in_page * token_stride(pool)) * dtype_bytes(pool.dtype);
  const int64_t shape[] = {1, num_tokens, pool.shape[1], pool.shape[3]};
  const int64_t stride[] = {0, token_stride(pool), pool.stride[1], 1};
  std::copy(std::begin(shape), std::end(shape), view.shape);
  std::copy(std::begin(stride), std::end(stride), view.stride);
  return view;
}

}  // namespace longdecode
