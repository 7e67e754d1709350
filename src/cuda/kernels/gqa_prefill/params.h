// What the prefill kernel gets by value. Device memory; strides in elements.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_PREFILL_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_GQA_PREFILL_PARAMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/gqa_append/params.h"

namespace longdecode::cuda::gqa_prefill {

struct Params {
  const uint16_t* g_q;  // bf16 [num_tokens, num_q_heads, dim]
  int64_t q_token_stride, q_head_stride;
  uint16_t* g_o;  // as q
  int64_t o_token_stride, o_head_stride;
  gqa_append::Params cache;                // of one sequence, without new rows
  int32_t num_tokens, num_q_heads, group;  // group: query heads of a kv head
  int32_t page_shift;                      // page_size = 1 << page_shift
  float softmax_scale_log2e;
};

inline constexpr int kTileTokens = 64;  // keys of a step
inline constexpr int kTileRows = 64;    // query tokens of a CTA, 16 a warp
inline constexpr int kThreads = 128;

// Instances by head_dim, which is rounded up to the next.
template <int kDim>
cudaError_t launch(const Params& params, bool two_plane, cudaStream_t stream);

}  // namespace longdecode::cuda::gqa_prefill

#endif  // LONGDECODE_CUDA_KERNELS_GQA_PREFILL_PARAMS_H_
