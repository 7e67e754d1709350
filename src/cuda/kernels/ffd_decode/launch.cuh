// Launches an instance.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_CUH_

#include "cuda/host/launch.h"
#include "cuda/kernels/ffd_decode/kernel.cuh"
#include "cuda/kernels/ffd_decode/launch.h"

namespace longdecode::cuda::ffd {

template <int kInstance>
cudaError_t launch(const Params& params, int32_t num_ctas, int32_t shared_bytes,
                   cudaStream_t stream) {
  using C = Config<kInstances[kInstance]>;
  static_assert(C::kStorageBytes <= kMaxStorageBytes);
  LaunchShape shape;
  shape.grid = dim3(num_ctas);
  shape.block = dim3(C::kThreads);
  shape.shared_bytes = shared_bytes;
  shape.is_for_sm80 = C::kIsSm80;
  return launch_programmatic(ffd_decode_kernel<kInstance>, shape, stream, params);
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_CUH_
