// The kernel: its CTAs take items until there are none.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_KERNEL_CUH_

#include "cuda/kernels/ffd_decode/worker.cuh"

namespace longdecode::cuda::ffd {

// A single sequence's queries and page ids on their way to L2 before its length is known.
__device__ __forceinline__ void prefetch_inputs(const Params& p) {
  if (p.batch > 1) return;
  const int64_t at = threadIdx.x * int64_t{128};
  if (at < p.prefetch_query_bytes) ptx::prefetch(reinterpret_cast<const uint8_t*>(p.g_q) + at);
  if (at < 4 * p.block_table_stride) {
    ptx::prefetch(reinterpret_cast<const uint8_t*>(p.g_block_table) + at);
  }
}

template <int kInstance>
__global__ void __launch_bounds__(Config<kInstances[kInstance]>::kThreads, 1)
    ffd_decode_kernel(const __grid_constant__ Params p) {
  using C = Config<kInstances[kInstance]>;
  extern __shared__ __align__(1024) uint8_t s_raw[];
  auto& s = *reinterpret_cast<typename C::SharedStorage*>(s_raw);
  const uint32_t s_base = ptx::shared_address(s_raw);
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x & 31;
  prefetch_inputs(p);
  ChunkRing<C> ring;
  ring.chunk_bytes = (C::kDim << p.page_shift) / 4 + 4 * C::kDim;
  const int query_rows = C::kTwoLanesFold ? 8 : 8 * p.num_row_blocks;
  ring.s_chunks = s_base + C::kQueryOffset + query_rows * (2 * C::kDim) +
                  warp * p.num_stages * ring.chunk_bytes;
  ring.s_barriers = ptx::shared_address(s.chunk_full[warp]);
  if (lane < p.num_stages) ptx::mbarrier_init(ring.s_barriers + 8 * lane, 1);
  ptx::fence_mbarrier_init();
  __syncwarp();  // a ring is its warp's alone
  ptx::launch_dependents();
  ptx::wait_dependency();
#pragma unroll 1
  for (int index = blockIdx.x, num_items = index + 1; index < num_items; index += gridDim.x) {
    ItemContext<C> context;
    context.item = find_item(p, index, lane);
    if (context.item.sequence < 0) return;
    num_items = context.item.num_items;
    context.num_rows = p.query_len * p.group;
    context.spans =
        make_spans(p, uniform(ptx::load_global_i32(p.g_kv_lens + context.item.sequence)),
                   uniform(query_len_of(p, context.item.sequence)));
    if (context.spans.is_empty()) {
      store_empty<C>(p, context, s);
      continue;
    }
    ItemWorker<C> worker(p, s, s_base, context, ring);
    worker.run();
    __syncthreads();
    finish_item<C>(p, context, worker.state, s, s_base + C::kSlotsOffset);
    __syncthreads();  // shared memory is free for the next item
  }
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_KERNEL_CUH_
