/* Part of c_api.h: the paged KV cache (kv_cache.h in C). Include c_api.h.
 *
 * One step: ld_cache_reserve; for each layer ld_cache_append, ld_cache_layer, ld_plan_run with the
 * batch of ld_cache_step; ld_cache_commit. */
#ifndef LONGDECODE_C_KV_CACHE_H_
#define LONGDECODE_C_KV_CACHE_H_

#include "longdecode/c_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes new tokens of a step into one layer of an engine's own pools. Sequence b gets
 * query_lens[b] tokens at positions kv_lens[b] - query_lens[b] .. kv_lens[b] - 1.
 * LD_INVALID_ARGUMENT, on CUDA without the lengths and ids; LD_UNAVAILABLE where the build has no
 * backend; LD_UNSUPPORTED on CUDA: an fp32 cache, k and v of different dtypes, or more new tokens
 * than a launch takes. */
typedef struct ld_append_args {
  size_t struct_size;
  const ld_kv_layer* kv; /* required */
  const ld_batch* batch; /* required; kv_lens after the append */
  const ld_tensor* k;    /* [batch, max_new, num_kv_heads, key_dim] post-RoPE, any dtype */
  const ld_tensor* v;    /* [batch, max_new, num_kv_heads, value_dim]; NULL for MLA */
} ld_append_args;

static inline ld_append_args ld_append_args_default(void) {
  ld_append_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  return args;
}

LONGDECODE_API ld_status_code ld_append_kv(const ld_append_args* args, const ld_device_info* device,
                                           void* stream);

typedef struct ld_cache_desc {
  size_t struct_size;
  const ld_kv_format* format; /* required */
  int64_t num_pages;          /* pages per layer, shared by all sequences; 1 to 2^31 - 1 */
  int64_t max_kv_len;         /* tokens per sequence, 1 to 2^31 - 1; the block table's width */
  int32_t num_layers;         /* 1 to 4096 */
  int32_t max_sequences;      /* 1 or more */
} ld_cache_desc;

static inline ld_cache_desc ld_cache_desc_default(void) {
  ld_cache_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.num_layers = 1;
  desc.max_sequences = 1;
  return desc;
}

typedef struct ld_cache ld_cache;

/* On success *cache is a handle for ld_cache_destroy, otherwise NULL. LD_INVALID_ARGUMENT for a bad
 * descriptor, LD_OUT_OF_MEMORY when pools or tables do not fit, LD_UNAVAILABLE where the device is
 * not there or the build has no backend for it. */
LONGDECODE_API ld_status_code ld_cache_create(const ld_cache_desc* desc,
                                              const ld_device_info* device, ld_cache** cache);
LONGDECODE_API void ld_cache_destroy(ld_cache* cache); /* NULL is allowed */

LONGDECODE_API ld_status_code ld_cache_num_free_pages(const ld_cache* cache, int64_t* num_pages);
LONGDECODE_API ld_status_code ld_cache_memory_bytes(const ld_cache* cache, int64_t* num_bytes);

/* CUDA: where ld_cache_reserve and ld_cache_fork enqueue their copies; until it is called, the
 * default stream. */
LONGDECODE_API ld_status_code ld_cache_set_stream(ld_cache* cache, void* stream);

/* A sequence id is 0 .. max_sequences - 1, valid until it is freed. LD_OUT_OF_MEMORY when every
 * slot is taken. */
LONGDECODE_API ld_status_code ld_cache_add_sequence(ld_cache* cache, int32_t* sequence);
/* Of a sequence of the reserved step: drops the step, as ld_cache_truncate does. */
LONGDECODE_API ld_status_code ld_cache_free_sequence(ld_cache* cache, int32_t sequence);
/* Committed tokens. */
LONGDECODE_API ld_status_code ld_cache_kv_len(const ld_cache* cache, int32_t sequence,
                                              int64_t* kv_len);
/* A second sequence with the same tokens; full pages are shared, later appends are not. */
LONGDECODE_API ld_status_code ld_cache_fork(ld_cache* cache, int32_t parent, int32_t* child);
/* Takes back the last num_tokens tokens, lossless. A two-plane cache refuses to go more than
 * LD_MAX_TRUNCATE_TOKENS below the longest length that the sequence has had. */
LONGDECODE_API ld_status_code ld_cache_truncate(ld_cache* cache, int32_t sequence,
                                                int64_t num_tokens);

/* Makes room for new_tokens[b] >= 0 more tokens of sequences[b] (distinct; host arrays of
 * num_sequences). LD_OUT_OF_MEMORY leaves everything as it was. A reserve before the commit
 * replaces the earlier one; LD_FAILED_PRECONDITION when what that one appended (more than
 * LD_MAX_TRUNCATE_TOKENS) has overwritten recent keys of a two-plane sequence: commit it. */
LONGDECODE_API ld_status_code ld_cache_reserve(ld_cache* cache, const int32_t* sequences,
                                               const int32_t* new_tokens, int32_t num_sequences);
/* The reserved step; its pointers stay the same for the cache's lifetime. */
LONGDECODE_API ld_status_code ld_cache_step(const ld_cache* cache, ld_batch* batch);
/* k, v as in ld_append_args, of the reserved step. Every layer once, in any order; a second time is
 * LD_FAILED_PRECONDITION. LD_INVALID_ARGUMENT has written nothing; after any other failure reserve
 * again. */
LONGDECODE_API ld_status_code ld_cache_append(ld_cache* cache, int32_t layer_idx,
                                              const ld_tensor* k, const ld_tensor* v, void* stream);
/* Lowers the tokens of the reserved step to new_tokens[b], at most those reserved, before a layer
 * is appended or marked, and gives back the pages that they do not need; num_sequences as reserved.
 * The arrays of the step keep what ld_cache_reserve put there, so ld_cache_append is
 * LD_FAILED_PRECONDITION from here on: mark the layers. Tokens that were written stay in the step,
 * wanted or not, and are truncated after the commit. */
LONGDECODE_API ld_status_code ld_cache_shrink_step(ld_cache* cache, const int32_t* new_tokens,
                                                   int32_t num_sequences);
/* The caller's word, instead of ld_cache_append, that the step's tokens of this layer are written,
 * or will be in stream order: by a replayed CUDA Graph that captured the append, or by the caller's
 * own kernel on ld_cache_layer and ld_cache_step. Nothing checks it. */
LONGDECODE_API ld_status_code ld_cache_mark_appended(ld_cache* cache, int32_t layer_idx);
/* Ends the step: the reserved tokens now belong to the sequences. LD_FAILED_PRECONDITION, naming
 * the layers, and the step stays open, while a layer was neither appended nor marked. */
LONGDECODE_API ld_status_code ld_cache_commit(ld_cache* cache);

/* The pointers in *layer belong to the cache and live as long as it. */
LONGDECODE_API ld_status_code ld_cache_layer(const ld_cache* cache, int32_t layer_idx,
                                             ld_kv_layer* layer);

/* Fills an empty sequence with kv_len tokens of an existing paged cache: k[l], v[l] are layer l's
 * pools [num_pages, num_kv_heads, page_size, dim] of any page size and dtype (v NULL for MLA),
 * num_layers of each; block_table (host) has num_block_table = ceil(kv_len / page_size) or more
 * page ids. A refusal changes nothing. */
LONGDECODE_API ld_status_code ld_cache_import_dense(ld_cache* cache, int32_t sequence,
                                                    const ld_tensor* const* k,
                                                    const ld_tensor* const* v, int32_t num_layers,
                                                    const int32_t* block_table,
                                                    int64_t num_block_table, int64_t kv_len,
                                                    void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LONGDECODE_C_KV_CACHE_H_ */
