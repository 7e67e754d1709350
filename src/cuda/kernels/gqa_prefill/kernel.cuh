// Causal attention of a chunk of tokens over the cache that holds their keys already: flash
// attention with mma.sync (Dao 2023). A CTA takes 64 tokens of a query head and walks over the keys
// that they see, 64 at a time; while it multiplies keys the values arrive, and the other way round.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_PREFILL_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_PREFILL_KERNEL_CUH_

#include "cuda/host/launch.h"
#include "cuda/kernels/gqa_prefill/compute.cuh"
#include "cuda/ptx/barrier.cuh"

namespace longdecode::cuda::gqa_prefill {

template <int kDim, bool kTwoPlane>
__global__ void __launch_bounds__(kThreads, kDim > 128 ? 1 : 2)
    gqa_prefill_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) uint8_t s_storage[];  // queries, keys, values
  const uint32_t s_q = ptx::shared_address(s_storage);
  const uint32_t s_k = s_q + kTileBytes<kDim>, s_v = s_k + kTileBytes<kDim>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // The last tokens see most: they come first.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  const int head = blockIdx.y, kv_head = head / p.group;
  if constexpr (kTwoPlane) {  // channels beyond the planes' are never written
    for (int i = threadIdx.x; i < kTileBytes<kDim> / 16; i += kThreads) {
      ptx::store_shared(s_k + 16 * i, make_int4(0, 0, 0, 0));
    }
    __syncthreads();
  }
  ptx::launch_dependents();
  ptx::wait_dependency();
  const int kv_len = p.cache.g_kv_lens[0];
  const int first_position = kv_len - p.num_tokens + first_row;
  const int end = min(kv_len, first_position + kTileRows);  // of the keys that are seen
  const int quantized = kTwoPlane ? quantized_pages(p.cache, kv_len) << p.page_shift : 0;
  const int num_tiles = (end + kTileTokens - 1) / kTileTokens;

  const uint16_t* g_queries = p.g_q + head * p.q_head_stride;
  load_rows<kDim>(
      s_q, first_row, p.num_tokens, p.cache.dim,
      [&](int token) { return g_queries + token * p.q_token_stride; }, p.g_q);
  if (num_tiles > 0) load_keys<kDim, kTwoPlane>(p, s_k, kv_head, 0, end, quantized);
  ptx::copy_async_commit();
  const uint32_t s_warp_q = s_q + warp * 16 * kPitchBytes<kDim>;
  const int position = first_position + 16 * warp + (lane >> 2);
  State<kDim> state;
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int first = tile * kTileTokens;
    load_rows<kDim>(
        s_v, first, end, p.cache.dim,
        [&](int token) { return pool_row(p, p.cache.v_pages, kv_head, token); }, p.g_q);
    ptx::copy_async_commit();
    ptx::copy_async_wait<1>();
    __syncthreads();  // keys are there
    float scores[kKeyBlocks][4];
    score<kDim>(s_warp_q, s_k, lane, scores);
    __syncthreads();  // and not needed any more
    if (tile + 1 < num_tiles) {
      load_keys<kDim, kTwoPlane>(p, s_k, kv_head, first + kTileTokens, end, quantized);
    }
    ptx::copy_async_commit();
    if (first + kTileTokens - 1 > first_position) mask(first, position, lane, scores);
    soften<kDim>(p.softmax_scale_log2e, scores, state);
    ptx::copy_async_wait<1>();
    __syncthreads();  // values are there
    add_values<kDim>(s_v, lane, scores, state);
    __syncthreads();  // and not needed any more
  }
  store<kDim>(p, head, first_row + 16 * warp, lane, state);
}

template <int kDim>
cudaError_t launch(const Params& params, bool two_plane, cudaStream_t stream) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((params.num_tokens + kTileRows - 1) / kTileRows),
                    static_cast<unsigned>(params.num_q_heads));
  shape.block = dim3(kThreads);
  shape.shared_bytes = 3 * kTileBytes<kDim>;
  return launch_programmatic(
      two_plane ? gqa_prefill_kernel<kDim, true> : gqa_prefill_kernel<kDim, false>, shape, stream,
      params);
}

}  // namespace longdecode::cuda::gqa_prefill

#endif  // LONGDECODE_CUDA_KERNELS_GQA_PREFILL_KERNEL_CUH_
