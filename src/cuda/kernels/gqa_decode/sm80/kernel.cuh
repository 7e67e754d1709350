// The kernel on sm_80: tiles by cp.async.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_KERNEL_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_KERNEL_CUH_

#include "cuda/kernels/gqa_decode/kernel.cuh"
#include "cuda/kernels/gqa_decode/sm80/load.cuh"

namespace longdecode::cuda::gqa::sm80 {

template <int kInstance>
__global__ void __launch_bounds__(Config<kInstances[kInstance]>::kMaxThreads, 1)
    gqa_decode_kernel(const __grid_constant__ Pools pools, const __grid_constant__ Params params) {
  using C = Config<kInstances[kInstance]>;
  extern __shared__ __align__(128) uint8_t s_raw[];
  run_cta<C>(Loader<C>{pools}, params, s_raw);
}

}  // namespace longdecode::cuda::gqa::sm80

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_KERNEL_CUH_
