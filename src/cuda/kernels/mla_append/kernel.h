#ifndef LONGDECODE_CUDA_KERNELS_MLA_APPEND_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_MLA_APPEND_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "longdecode/types.h"

namespace longdecode::cuda {

// Device pointers.
struct AppendParams {
  const void* g_k;  // [batch, max_new, 1, 576], strides in elements
  int64_t k_batch_stride, k_token_stride;
  uint16_t* g_pool;  // [num_pages, 1, page_size, 576], strides in elements
  int64_t page_stride, row_stride;
  const int32_t* g_block_table;
  int64_t block_table_stride;
  const int32_t* g_kv_lens;     // [batch] tokens, the new ones included
  const int32_t* g_query_lens;  // [batch] new tokens, or nullptr: max_new each
  int32_t max_new, page_size;
};

// num_tokens = batch * max_new, at least 1.
cudaError_t launch_mla_append(const AppendParams& params, DType from, DType to, int32_t num_tokens,
                              cudaStream_t stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_MLA_APPEND_KERNEL_H_
