// What the RoPE kernels get by value. Device memory.
#ifndef LONGDECODE_CUDA_KERNELS_ROTARY_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_ROTARY_PARAMS_H_

#include <cstdint>

#include "cuda/kernels/gqa_append/params.h"

namespace longdecode::cuda::rotary {

// A warp takes a head: 4 pairs of channels a lane.
inline constexpr int32_t kMaxHeadDim = 256;

struct Model {
  int32_t num_q_heads, num_kv_heads, head_dim, rope_dim;
  bool adjacent_pairs;          // (2 i, 2 i + 1) are rotated together; else (i, i + rope_dim / 2)
  const double* g_frequencies;  // [rope_dim / 2] radians per position
  const float* g_q_norm;        // [head_dim] or nullptr
  const float* g_k_norm;        // as g_q_norm
  float norm_eps;
};

// Rows of tokens, all of a sequence's heads: [batch, query_len, ...].
struct Params {
  Model model;
  const float* g_qkv;           // [.., num_q_heads + 2 num_kv_heads, head_dim]
  uint16_t* g_q;                // [.., num_q_heads, head_dim]
  uint16_t* g_k;                // [.., num_kv_heads, head_dim]; unused where the cache gets it
  uint16_t* g_v;                // as g_k
  const int32_t* g_kv_lens;     // [batch] tokens, the new ones included
  const int32_t* g_query_lens;  // [batch] new tokens, or nullptr: query_len each
  int32_t batch, query_len;
};

struct AppendParams {
  Params rope;
  gqa_append::Params cache;  // without k and v; pages of a pair are due one at a time
  int32_t quantize_ctas;     // the first CTAs: one for each (sequence, kv head), or none
};

}  // namespace longdecode::cuda::rotary

#endif  // LONGDECODE_CUDA_KERNELS_ROTARY_PARAMS_H_
