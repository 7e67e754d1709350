// The statistics of dense attention, GQA and MLA: what is visible is attended.
#ifndef LONGDECODE_CUDA_KERNELS_DENSE_STATS_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_DENSE_STATS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "longdecode/attention.h"

namespace longdecode::cuda {

struct StatsParams {
  DecodeStats stats;
  const int32_t* g_kv_lens;     // [batch] tokens
  const int32_t* g_query_lens;  // [batch] tokens, or nullptr: query_len each
  int32_t batch, query_len, num_kv_heads, num_q_heads;
  int64_t sliding_window;  // tokens, 0: none
  int64_t token_bytes;     // of K and V of a kv head
};

cudaError_t launch_stats(const StatsParams& params, cudaStream_t stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_DENSE_STATS_KERNEL_H_
