/* The C ABI over the whole public API (C99). Semantics, shapes and units are those of the C++
 * headers attention.h, kv_cache.h and kv_format.h; this header repeats what a C caller must know.
 *
 * Errors: every function that can fail returns an ld_status_code; ld_last_error() gives the message
 * of the calling thread's last call, which names the argument, its value and what is allowed. No
 * C++ exception leaves the library. Null handles and null required pointers are
 * LD_INVALID_ARGUMENT.
 *
 * Structs: each begins with struct_size, set by its ld_*_default(). They may grow at the end: from
 * a caller with an older header (smaller struct_size) the later fields are taken as their defaults;
 * a larger struct_size is accepted while the bytes that this library does not know are zero. A
 * struct inside another is a pointer, read during the call only. struct_size 0 and more than 4096
 * are refused. No struct ends in padding: `reserved` fields are 0.
 *
 * Ownership: ld_plan_create and ld_cache_create give handles that the caller destroys once; using a
 * handle after that is undefined, as with free(). A plan's workspace, all tensors and all arrays
 * belong to the caller, and outlive the runs that are enqueued on them. What ld_cache_step and
 * ld_cache_layer give belongs to the cache and ends with it.
 *
 * Threads: distinct handles may be used at once; calls on one handle must not overlap.
 * Memory in tensors and arrays is on the device of the call unless stated. `stream` is a
 * cudaStream_t, or NULL: the default stream, and always on the CPU. */
#ifndef LONGDECODE_C_API_H_
#define LONGDECODE_C_API_H_

#include "longdecode/c_attention.h"
#include "longdecode/c_base.h"
#include "longdecode/c_kv_cache.h"
#include "longdecode/version.h"

#endif /* LONGDECODE_C_API_H_ */
