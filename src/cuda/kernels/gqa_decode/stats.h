// The statistics of dense attention: what is visible is attended.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_STATS_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_STATS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "longdecode/attention.h"

namespace longdecode::cuda::gqa {

struct StatsParams {
  DecodeStats stats;
  const int32_t* g_kv_lens;     // [batch] tokens
  const int32_t* g_query_lens;  // [batch] tokens, or nullptr: query_len each
  int32_t batch, query_len, num_kv_heads, num_q_heads;
  int64_t sliding_window;  // tokens, 0: none
  int64_t token_bytes;     // of K and V of a kv head
};

bool wants_stats(const DecodeStats& stats);
cudaError_t launch_stats(const StatsParams& params, cudaStream_t stream);

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_STATS_H_
