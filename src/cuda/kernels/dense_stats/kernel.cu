#include "cuda/kernels/dense_stats/kernel.h"

#include <cmath>

namespace longdecode::cuda {
namespace {

constexpr int kThreads = 128;

// A CTA per (sequence, kv head).
__global__ void stats_kernel(StatsParams p) {
  const int64_t pair = blockIdx.x;
  const auto sequence = static_cast<int32_t>(pair / p.num_kv_heads);
  const int64_t kv_len = p.g_kv_lens[sequence];
  const int64_t query_len = p.g_query_lens != nullptr ? p.g_query_lens[sequence] : p.query_len;
  int64_t begin = p.sliding_window > 0 ? kv_len - query_len - p.sliding_window + 1 : 0;
  begin = begin > 0 ? begin : 0;
  const int64_t attended = query_len > 0 && kv_len > begin ? kv_len - begin : 0;
  if (threadIdx.x == 0) {
    if (p.stats.tokens_scanned != nullptr) p.stats.tokens_scanned[pair] = 0;
    if (p.stats.tokens_attended != nullptr) p.stats.tokens_attended[pair] = attended;
    if (p.stats.bytes_read != nullptr) p.stats.bytes_read[pair] = attended * p.token_bytes;
  }
  const int64_t rows = int64_t{p.query_len} * p.num_q_heads;
  for (int64_t i = threadIdx.x; i < rows && pair % p.num_kv_heads == 0; i += kThreads) {
    const int64_t row = sequence * rows + i;
    if (p.stats.pseudo_max != nullptr) p.stats.pseudo_max[row] = -INFINITY;
    if (p.stats.dropped_mass_bound != nullptr) p.stats.dropped_mass_bound[row] = 0.0f;
  }
  if (p.stats.kept_tiles == nullptr) return;
  const int64_t first_tile = begin / kTileTokens;
  const int64_t end_tile = attended > 0 ? (kv_len - 1) / kTileTokens + 1 : 0;
  for (int64_t word = threadIdx.x; word < p.stats.kept_tiles_stride; word += kThreads) {
    uint32_t bits = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const int64_t tile = 32 * word + bit;
      if (tile >= first_tile && tile < end_tile) bits |= 1u << bit;
    }
    p.stats.kept_tiles[pair * p.stats.kept_tiles_stride + word] = bits;
  }
}

}  // namespace

cudaError_t launch_stats(const StatsParams& params, cudaStream_t stream) {
  stats_kernel<<<params.batch * params.num_kv_heads, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace longdecode::cuda
