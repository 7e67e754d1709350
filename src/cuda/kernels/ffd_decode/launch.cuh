// Launches an instance.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_CUH_

#include "cuda/kernels/ffd_decode/kernel.cuh"
#include "cuda/kernels/ffd_decode/launch.h"

namespace longdecode::cuda::ffd {

template <int kInstance>
cudaError_t launch(const Params& params, int32_t num_ctas, int32_t shared_bytes,
                   cudaStream_t stream) {
  using C = Config<kInstances[kInstance]>;
  static_assert(C::kStorageBytes <= kMaxStorageBytes);
  const cudaError_t error = cudaFuncSetAttribute(
      ffd_decode_kernel<kInstance>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_ctas);
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, ffd_decode_kernel<kInstance>, params);
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_CUH_
