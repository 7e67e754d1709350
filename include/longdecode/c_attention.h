/* Part of c_api.h: decode attention (attention.h in C). Include c_api.h. */
#ifndef LONGDECODE_C_ATTENTION_H_
#define LONGDECODE_C_ATTENTION_H_

#include "longdecode/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Top-delta selection: token j is a candidate when its 2-bit score + margin >= m~ - delta, m~ being
 * the largest exact score of the sink, recent and unquantised tokens. */
typedef struct ld_ffd_options {
  size_t struct_size;
  float delta;           /* nats, >= 0; infinity keeps every token */
  float margin_sigmas;   /* >= 0; margin in standard deviations of the 2-bit noise */
  int32_t certified;     /* 0 or 1; 1: worst-case margin, no token with s >= m~ - delta is missed */
  int32_t sink_tokens;   /* >= 0, the first tokens of the sequence */
  int32_t recent_tokens; /* >= 0, counted back from each query token's own position */
  int32_t reserved;      /* 0 */
} ld_ffd_options;

static inline ld_ffd_options ld_ffd_options_default(void) {
  ld_ffd_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.delta = 5.0f;
  options.margin_sigmas = 0.5f;
  options.sink_tokens = 128;
  options.recent_tokens = 128;
  return options;
}

typedef struct ld_decode_desc {
  size_t struct_size;
  int32_t method;             /* LD_METHOD_* */
  int32_t q_dtype;            /* of Q and O */
  const ld_kv_format* format; /* required */
  const ld_ffd_options* ffd;  /* NULL: the defaults; used by LD_METHOD_FFD */
  int32_t num_q_heads;        /* a multiple of num_kv_heads; at most 128 (MLA), 16 per kv head */
  int32_t max_batch;          /* 1 to 2^20 */
  int32_t max_query_len;      /* 1 to LD_MAX_QUERY_LEN */
  int32_t learned_sinks;      /* 0 or 1: sink_logits enter denominator and lse exactly once */
  int64_t max_kv_len;         /* tokens, 1 to 2^31 - 1; kernels on CUDA: up to 2^30 */
  int64_t sliding_window;     /* 0: off; else a query at position p sees j > p - sliding_window */
  float softmax_scale;        /* 0: 1 / sqrt(head_dim) for GQA; must be given for MLA */
  float soft_cap;             /* 0: off; before the mask and before selection */
  int32_t causal;             /* 0 or 1: query token t sits at position kv_len - query_len + t */
  int32_t batch_invariant;    /* 0 or 1: a sequence's bits do not depend on its neighbours */
} ld_decode_desc;

static inline ld_decode_desc ld_decode_desc_default(void) {
  ld_decode_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.q_dtype = LD_DTYPE_BF16;
  desc.num_q_heads = 32;
  desc.max_batch = 1;
  desc.max_query_len = 1;
  desc.causal = 1;
  return desc;
}

/* One layer of a KV cache. ld_cache_layer fills it; an engine with its own pools does so by hand.
 * The memory belongs to whoever allocated it and needs no initialisation: nothing but appended
 * tokens reaches a result. ld_append_kv writes the pages, planes and ring rows of the new tokens,
 * which no other sequence may share; a run only reads. */
typedef struct ld_kv_layer {
  size_t struct_size;
  const ld_kv_format* format; /* required */
  const ld_tensor* k;         /* plain: [num_pages, num_kv_heads, page_size, key_dim], else NULL */
  const ld_tensor* v;         /* GQA: [num_pages, num_kv_heads, page_size, value_dim], else NULL */
  uint8_t* chunks;            /* two-plane: chunk (page, head) is at page * stride + head * bytes */
  uint8_t* residuals;
  int64_t chunk_page_stride_bytes;
  int64_t residual_page_stride_bytes;
  int64_t num_pages;         /* of both planes */
  const ld_tensor* recent_k; /* two-plane: [num_slots, num_kv_heads, recent_ring_tokens, key_dim] */
} ld_kv_layer;

static inline ld_kv_layer ld_kv_layer_default(void) {
  ld_kv_layer layer;
  memset(&layer, 0, sizeof layer);
  layer.struct_size = sizeof layer;
  return layer;
}

/* The sequences of a step: arrays on the device, read at run time. */
typedef struct ld_batch {
  size_t struct_size;
  /* [batch, block_table_stride] page ids, all of it readable, the first ceil(kv_len / page_size) of
     a row used. On CUDA the host sees neither ids nor lengths: what the CPU would refuse is
     undefined. */
  const int32_t* block_table;
  int64_t block_table_stride;
  const int32_t* kv_lens;    /* [batch] tokens visible, this step's own included */
  const int32_t* query_lens; /* [batch], or NULL: query_len (append: k's dimension 1) each */
  const int32_t* slots;      /* [batch] rows of recent_k; two-plane only */
  int32_t batch;
  int32_t reserved; /* 0 */
} ld_batch;

static inline ld_batch ld_batch_default(void) {
  ld_batch batch;
  memset(&batch, 0, sizeof batch);
  batch.struct_size = sizeof batch;
  return batch;
}

/* Statistics, device memory; each pointer may be NULL. */
typedef struct ld_decode_stats {
  size_t struct_size;
  int64_t* tokens_scanned;   /* [batch, num_kv_heads] tokens whose codes were read */
  int64_t* tokens_attended;  /* [batch, num_kv_heads] attended exactly; / kv_len = kept_fraction */
  int64_t* bytes_read;       /* [batch, num_kv_heads] bytes of the cache */
  float* pseudo_max;         /* [batch, query_len, num_q_heads] m~ */
  float* dropped_mass_bound; /* [batch, query_len, num_q_heads]; rigorous if certified */
  uint32_t* kept_tiles; /* [batch, num_kv_heads, kept_tiles_stride] words, bit t % 32 of t / 32 */
  int64_t kept_tiles_stride;
} ld_decode_stats;

static inline ld_decode_stats ld_decode_stats_default(void) {
  ld_decode_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  return stats;
}

typedef struct ld_decode_args {
  size_t struct_size;
  const ld_tensor* q;           /* [batch, query_len, num_q_heads, key_dim], q_dtype */
  const ld_tensor* o;           /* [batch, query_len, num_q_heads, value_dim]; written whole, never
                                 * read; must not overlap q, the cache, lse or the workspace */
  float* lse;                   /* [batch, query_len, num_q_heads], natural log, or NULL */
  const ld_kv_layer* kv;        /* required */
  const ld_batch* batch;        /* required */
  const float* sink_logits;     /* [num_q_heads] iff learned_sinks */
  const ld_decode_stats* stats; /* or NULL */
  int32_t query_len;            /* rows of q's dimension 1, at most max_query_len */
  int32_t reserved;             /* 0 */
} ld_decode_args;

static inline ld_decode_args ld_decode_args_default(void) {
  ld_decode_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.query_len = 1;
  return args;
}

/* What serves a descriptor on a device. */
typedef struct ld_kernel_choice {
  size_t struct_size;
  char name[64];            /* e.g. "cpu/gqa_decode" */
  char isa[32];             /* e.g. "avx512" */
  int64_t tokens_per_split; /* 0: scheduled on the device */
} ld_kernel_choice;

static inline ld_kernel_choice ld_kernel_choice_default(void) {
  ld_kernel_choice choice;
  memset(&choice, 0, sizeof choice);
  choice.struct_size = sizeof choice;
  return choice;
}

/* Pure: needs no device: on CUDA an ld_device_info of type, compute_capability, num_sms and
 * shared_memory_bytes will do. LD_INVALID_ARGUMENT for a bad descriptor or num_threads;
 * LD_UNAVAILABLE where the build has no backend for the type; LD_UNSUPPORTED lists every reason why
 * nothing fits. */
LONGDECODE_API ld_status_code ld_select_kernel(const ld_decode_desc* desc,
                                               const ld_device_info* device,
                                               ld_kernel_choice* choice);

typedef struct ld_plan ld_plan;

/* On success *plan is a handle for ld_plan_destroy, otherwise NULL. The errors of
 * ld_select_kernel. */
LONGDECODE_API ld_status_code ld_plan_create(const ld_decode_desc* desc,
                                             const ld_device_info* device, ld_plan** plan);
LONGDECODE_API void ld_plan_destroy(ld_plan* plan); /* NULL is allowed */
LONGDECODE_API ld_status_code ld_plan_kernel(const ld_plan* plan, ld_kernel_choice* choice);
/* Device bytes for the workspace: 16-byte aligned, not shared by concurrent runs. */
LONGDECODE_API ld_status_code ld_plan_workspace_bytes(const ld_plan* plan, int64_t* num_bytes);
/* Once; the workspace must live as long as runs of the plan. LD_INVALID_ARGUMENT where it is NULL
 * or not aligned and the plan's bytes are not 0. CUDA: enqueues; what CUDA refuses is
 * LD_UNAVAILABLE, LD_OUT_OF_MEMORY or LD_INTERNAL. */
LONGDECODE_API ld_status_code ld_plan_init(ld_plan* plan, void* workspace, void* stream);
/* Enqueues one step (CPU: returns when the result is there). No allocation, no synchronisation.
 * LD_INVALID_ARGUMENT for what the host can see, on the CPU lengths and page ids too, with nothing
 * written; LD_FAILED_PRECONDITION before ld_plan_init; what CUDA refuses as there. */
LONGDECODE_API ld_status_code ld_plan_run(ld_plan* plan, const ld_decode_args* args, void* stream);

/* Merges partial results over disjoint token sets by their lse (natural log). An empty partial has
 * lse = -infinity; all empty gives o = 0, lse = -infinity. o and lse overlap neither the partials
 * nor each other. LD_INVALID_ARGUMENT, and LD_UNAVAILABLE where the build has no backend. */
typedef struct ld_merge_args {
  size_t struct_size;
  const float* partial_o;   /* [num_partials, num_rows, dim] */
  const float* partial_lse; /* [num_partials, num_rows] */
  float* o;                 /* [num_rows, dim] */
  float* lse;               /* [num_rows] or NULL */
  int64_t num_rows;
  int64_t dim;
  int32_t num_partials;
  int32_t reserved; /* 0 */
} ld_merge_args;

static inline ld_merge_args ld_merge_args_default(void) {
  ld_merge_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  return args;
}

LONGDECODE_API ld_status_code ld_merge_partials(const ld_merge_args* args,
                                                const ld_device_info* device, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LONGDECODE_C_ATTENTION_H_ */
