#ifndef LONGDECODE_TESTS_GPU_FILL_H_
#define LONGDECODE_TESTS_GPU_FILL_H_

#include <cuda_runtime_api.h>

#include "longdecode/tensor.h"
#include "tests/gpu/hash_values.h"

namespace longdecode::gpu_test {

// Writes the rows of every sequence to its pages, and infinity to every second row of a last page's
// tail; everything else is left alone.
cudaError_t fill_pool(const ValueRule& rule, const TensorView& pool, const int32_t* g_block_table,
                      int64_t block_table_stride, const int32_t* g_kv_lens, int32_t batch,
                      int32_t page_size, cudaStream_t stream);

// Writes q [batch, query_len, heads, 576]; rows of tokens that a ragged sequence lacks become NaN.
cudaError_t fill_query(const ValueRule& rule, const TensorView& q, const int32_t* g_query_lens,
                       cudaStream_t stream);

}  // namespace longdecode::gpu_test

#endif  // LONGDECODE_TESTS_GPU_FILL_H_
