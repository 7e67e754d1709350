// The kernel: its CTAs take items until there are none.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_KERNEL_CUH_

#include "cuda/kernels/ffd_decode/attender.cuh"
#include "cuda/kernels/ffd_decode/scanner.cuh"

namespace longdecode::cuda::ffd {

// A single sequence's queries, slot and page ids on their way to L2 before its length is known.
__device__ __forceinline__ void prefetch_inputs(const Params& p) {
  if (p.batch > 1) return;
  const int64_t at = threadIdx.x * int64_t{128};
  if (threadIdx.x == 0) ptx::prefetch(p.g_slots);
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
  const int ring_warp = uniform(threadIdx.x / 32);
  prefetch_inputs(p);
  init_barriers<C>(p, s, ring_warp);
  ChunkRing ring;
  const int query_rows = C::kTwoLanesFold ? 8 : 8 * p.num_row_blocks;
  ring.s_chunks = s_base + C::kQueryOffset + query_rows * (2 * C::kDim) +
                  ring_warp * p.num_stages * p.chunk_bytes;
  ring.s_barriers = ptx::shared_address(s.chunk_full[ring_warp % C::kScanWarps]);
  ptx::launch_dependents();
  ptx::wait_dependency();
  // Of a single sequence: asked for before anything else.
  const int early_kv_len = p.batch == 1 ? ptx::load_global_i32(p.g_kv_lens) : 0;
  ItemCounts counts;
#pragma unroll 1
  for (int index = blockIdx.x, num_items = index + 1; index < num_items; index += gridDim.x) {
    // Read again for every item, or all that is derived from it takes registers all the time.
    const int warp = uniform(ptx::thread_index() / 32), lane = ptx::thread_index() & 31;
    ItemContext<C> context;
    context.item = find_item(p, early_kv_len, index, lane, context.spans);
    if (context.item.sequence < 0) return;
    num_items = context.item.num_items;
    context.num_rows = p.query_len * p.group;
    if (context.spans.is_empty()) {
      store_empty<C>(p, context, s);
      continue;
    }
    __syncthreads();  // shared memory is free, the barriers are there
    if (warp < C::kScanWarps) {
      if constexpr (C::kMovesRegisters) ptx::decrease_registers<C::kScanRegisters>();
      Scanner<C> scanner(p, s, s_base, context, counts, ring);
      counts.num_rounds += scanner.run();
      finish_item<C>(p, context, s, s_base, counts.num_items & 1);
      if constexpr (C::kMovesRegisters) ptx::increase_registers<C::kSharedRegisters>();
    } else {
      if constexpr (C::kMovesRegisters) ptx::increase_registers<C::kAttendRegisters>();
      Attender<C> attender(p, s, s_base, context, counts);
      counts.num_rounds += attender.run();
      if constexpr (C::kMovesRegisters) ptx::decrease_registers<C::kSharedRegisters>();
    }
    ++counts.num_items;
  }
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_KERNEL_CUH_
