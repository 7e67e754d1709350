// The kernel on sm_90: a producer warp with TMA beside the computing warps.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_KERNEL_CUH_

#include "cuda/kernels/gqa_decode/kernel.cuh"
#include "cuda/kernels/gqa_decode/sm90/load.cuh"

namespace longdecode::cuda::gqa::sm90 {

template <int kInstance>
__global__ void __launch_bounds__(Config<kInstances[kInstance]>::kMaxThreads, 1)
    gqa_decode_kernel(const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap v_map,
                      const __grid_constant__ Params params) {
  using C = Config<kInstances[kInstance]>;
  extern __shared__ __align__(1024) uint8_t s_raw[];
  auto& s_storage = *reinterpret_cast<typename C::SharedStorage*>(s_raw);
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);
  const int compute_warps = blockDim.x / 32 - 1;
  Schedule<C> schedule(params);
  if (warp == compute_warps && threadIdx.x % 32 == 0) {
    ptx::prefetch_tensor_map(&k_map);
    ptx::prefetch_tensor_map(&v_map);
  }
  ptx::wait_dependency();
  if (warp == compute_warps) {
    // Small batches and fixed splits need nothing from the other warps.
    if (!Schedule<C>::needs_block_sums(params)) {
      schedule.init(params, Place(params).worker, nullptr);
    }
  }
  set_up<C>(params, s_storage, schedule, 1);
  ptx::launch_dependents();  // the merge kernel, or whoever follows
  if (warp == compute_warps) {
    if (Schedule<C>::needs_block_sums(params)) {
      schedule.init(params, Place(params).worker, s_storage.block_sums);
    }
    produce<C>(&k_map, &v_map, params, ptx::shared_address(s_raw), schedule);
  } else {
    compute<C>(params, s_storage, warp % C::kTokenWarps, warp / C::kTokenWarps);
  }
}

}  // namespace longdecode::cuda::gqa::sm90

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_KERNEL_CUH_
