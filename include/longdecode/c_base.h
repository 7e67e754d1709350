/* Part of c_api.h: status codes, tensors, devices, KV formats. Include c_api.h. */
#ifndef LONGDECODE_C_BASE_H_
#define LONGDECODE_C_BASE_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "longdecode/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ld_status_code {
  LD_OK = 0,
  LD_INVALID_ARGUMENT = 1,    /* outside what the contract allows */
  LD_UNSUPPORTED = 2,         /* valid, but no kernel of this build or device serves it */
  LD_OUT_OF_MEMORY = 3,       /* pages, sequence slots or memory ran out; state is unchanged */
  LD_FAILED_PRECONDITION = 4, /* a call out of order */
  LD_UNAVAILABLE = 5,         /* the device or driver is not there */
  LD_DATA_LOSS = 6,
  LD_NOT_FOUND = 7,
  LD_INTERNAL = 8 /* a bug in longdecode */
} ld_status_code;

/* Values of the int32_t fields of the same name. */
enum { LD_DTYPE_F32 = 0, LD_DTYPE_F16 = 1, LD_DTYPE_BF16 = 2 };
enum { LD_DEVICE_CPU = 0, LD_DEVICE_CUDA = 1 };
enum { LD_OP_GQA = 0, LD_OP_MLA = 1 };
enum { LD_METHOD_DENSE = 0, LD_METHOD_FFD = 1 };
enum { LD_KEYS_PLAIN = 0, LD_KEYS_TWO_PLANE = 1 };
enum {
  LD_MAX_RANK = 4,
  LD_MAX_QUERY_LEN = 8,
  LD_MAX_TRUNCATE_TOKENS = 8, /* of a two-plane cache */
  LD_TILE_TOKENS = 16,
  LD_MAX_THREADS = 1024, /* of a CPU run */
  LD_MLA_KEY_DIM = 576,
  LD_MLA_VALUE_DIM = 512
};

/* "major.minor.patch" of the library, not of the header. */
LONGDECODE_API const char* ld_version(void);

/* Message of this thread's last ld_ call, "" when it succeeded. Valid until the next call. */
LONGDECODE_API const char* ld_last_error(void);

/* ---- Tensors ----
 * A strided view. The base pointer and every stride are multiples of 16 bytes, the innermost stride
 * is 1 element, the stride of a dimension of size 1 is ignored. What a call writes must overlap
 * neither itself nor what the call reads. */
typedef struct ld_tensor {
  size_t struct_size;
  void* data;
  int32_t dtype; /* LD_DTYPE_* */
  int32_t rank;
  int64_t shape[LD_MAX_RANK];
  int64_t stride[LD_MAX_RANK]; /* elements */
} ld_tensor;

/* Row-major contiguous; rank at most LD_MAX_RANK (more dimensions are ignored). */
static inline ld_tensor ld_tensor_contiguous(void* data, int32_t dtype, int32_t rank,
                                             const int64_t* shape) {
  ld_tensor tensor;
  int64_t stride = 1;
  int32_t i;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank < LD_MAX_RANK ? rank : LD_MAX_RANK;
  for (i = tensor.rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    stride *= shape[i];
  }
  return tensor;
}

/* ---- Devices ---- */
typedef struct ld_device_info {
  size_t struct_size;
  int32_t type; /* LD_DEVICE_* */
  int32_t device_idx;
  char name[96];
  int64_t memory_bytes;
  int64_t last_level_cache_bytes;
  int32_t num_threads;     /* CPU: worker threads a run may use, 1 to LD_MAX_THREADS */
  int32_t has_avx512_vnni; /* 0 or 1, as the next two */
  int32_t has_avx512_bf16;
  int32_t has_amx_bf16;
  int32_t compute_capability; /* CUDA, all that ld_select_kernel reads: 90 for sm_90 */
  int32_t num_sms;
  int64_t shared_memory_bytes; /* opt-in maximum per block */
} ld_device_info;

static inline ld_device_info ld_device_info_default(void) {
  ld_device_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  info.num_threads = 1;
  return info;
}

/* Fills *info (struct_size set by the caller). LD_UNAVAILABLE, with the reason, where there is no
 * such device or the build has no backend for it. */
LONGDECODE_API ld_status_code ld_detect_device(int32_t type, int32_t device_idx,
                                               ld_device_info* info);

/* ---- KV formats ---- */
typedef struct ld_kv_format {
  size_t struct_size;
  int32_t op;           /* LD_OP_* */
  int32_t keys;         /* LD_KEYS_* */
  int32_t dtype;        /* of plain keys, of unquantised recent keys and of V */
  int32_t num_kv_heads; /* 1 to 1024; 1 for MLA */
  int32_t key_dim;      /* head_dim for GQA: 64, 80, 96, 128 or 256; 576 for MLA */
  int32_t value_dim;    /* head_dim for GQA; 512 for MLA: a prefix of the key row */
  int32_t page_size;    /* tokens; two-plane: 64 or 128, otherwise 1, 16, 32, 64 or 128 */
  int32_t reserved;     /* 0 */
} ld_kv_format;

static inline ld_kv_format ld_kv_format_gqa(int32_t keys, int32_t dtype, int32_t num_kv_heads,
                                            int32_t head_dim, int32_t page_size) {
  ld_kv_format format;
  memset(&format, 0, sizeof format);
  format.struct_size = sizeof format;
  format.op = LD_OP_GQA;
  format.keys = keys;
  format.dtype = dtype;
  format.num_kv_heads = num_kv_heads;
  format.key_dim = head_dim;
  format.value_dim = head_dim;
  format.page_size = page_size;
  return format;
}
static inline ld_kv_format ld_kv_format_mla(int32_t dtype, int32_t page_size) {
  ld_kv_format format = ld_kv_format_gqa(LD_KEYS_PLAIN, dtype, 1, LD_MLA_KEY_DIM, page_size);
  format.op = LD_OP_MLA;
  format.value_dim = LD_MLA_VALUE_DIM;
  return format;
}

/* Bytes of the two-plane layout, for engines with their own pools (kv_format.h has the layout). */
typedef struct ld_kv_format_sizes {
  size_t struct_size;
  int32_t padded_dim;         /* channels of the planes */
  int32_t recent_ring_tokens; /* rows of a sequence's ring of unquantised keys */
  int64_t chunk_bytes;        /* codes, steps, zeros of one (page, kv head) */
  int64_t step_offset_bytes;  /* in the chunk */
  int64_t zero_offset_bytes;
  int64_t residual_bytes; /* residuals of one (page, kv head) */
  double bytes_per_token; /* K and V over all kv heads, any encoding */
} ld_kv_format_sizes;

static inline ld_kv_format_sizes ld_kv_format_sizes_default(void) {
  ld_kv_format_sizes sizes;
  memset(&sizes, 0, sizeof sizes);
  sizes.struct_size = sizeof sizes;
  return sizes;
}

LONGDECODE_API ld_status_code ld_kv_format_validate(const ld_kv_format* format);
LONGDECODE_API ld_status_code ld_kv_format_get_sizes(const ld_kv_format* format,
                                                     ld_kv_format_sizes* sizes);
/* Full pages whose keys are quantised in a two-plane sequence of kv_len >= 0 tokens. */
LONGDECODE_API ld_status_code ld_kv_format_num_quantized_pages(const ld_kv_format* format,
                                                               int64_t kv_len, int64_t* num_pages);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LONGDECODE_C_BASE_H_ */
