// Reading an existing paged cache: validation, and its tokens as views that append takes.
#ifndef LONGDECODE_CACHE_IMPORT_DENSE_H_
#define LONGDECODE_CACHE_IMPORT_DENSE_H_

#include <cstdint>
#include <span>

#include "longdecode/kv_cache.h"
#include "longdecode/status.h"

namespace longdecode {

// Everything that import_dense can refuse about its source, before anything is written.
Status validate_import(const KvFormat& format, int32_t num_layers, std::span<const PagedKv> layers,
                       std::span<const int32_t> block_table, int64_t kv_len);

// Tokens that one append can take from position `token` on: those of the same page, and of the
// pages that follow it in memory of every layer (stride permitting), at most kMaxImportTokens.
inline constexpr int64_t kMaxImportTokens = 4096;
int64_t import_run_tokens(const KvFormat& format, std::span<const PagedKv> layers,
                          std::span<const int32_t> block_table, int64_t token, int64_t kv_len);

// [1, num_tokens, num_kv_heads, dim] view of a run in a source pool; no copy.
TensorView import_run_view(const TensorView& pool, std::span<const int32_t> block_table,
                           int64_t token, int64_t num_tokens);

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_IMPORT_DENSE_H_
