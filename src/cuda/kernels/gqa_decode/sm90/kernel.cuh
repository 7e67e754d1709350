// The kernel on sm_90: tiles by TMA.
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
  run_cta<C>(Loader<C>{&k_map, &v_map}, params, s_raw);
}

}  // namespace longdecode::cuda::gqa::sm90

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_KERNEL_CUH_
