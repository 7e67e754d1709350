// What the sampling kernels get by value. Device memory.
#ifndef LONGDECODE_CUDA_KERNELS_SAMPLING_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_SAMPLING_PARAMS_H_

#include <cstdint>

namespace longdecode::cuda::sampling {

inline constexpr int kClusterCtas = 8;  // of a sequence, a slice of the vocabulary each
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int32_t kMaxVocab = 400000;  // keys of a slice stay in shared memory

struct Params {
  const float* g_logits;  // [batch, vocab_size]
  int32_t batch, vocab_size;
  float inverse_temperature;
  int32_t top_k;  // 0: all
  float top_p;
  const uint64_t* g_seeds;  // [batch]; nullptr: greedy
  int32_t* g_ids;           // [batch]
  int32_t* g_steps;         // [batch]
  int32_t* g_history;       // [history_steps, batch] or nullptr
  int32_t history_steps;
};

constexpr int32_t slice_of(int32_t vocab_size) {
  return (vocab_size + kClusterCtas - 1) / kClusterCtas;
}

}  // namespace longdecode::cuda::sampling

#endif  // LONGDECODE_CUDA_KERNELS_SAMPLING_PARAMS_H_
