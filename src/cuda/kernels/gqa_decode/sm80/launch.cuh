// Launches an instance.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LAUNCH_CUH_

#include "cuda/kernels/gqa_decode/launch.cuh"
#include "cuda/kernels/gqa_decode/sm80/kernel.cuh"
#include "cuda/kernels/gqa_decode/sm80/launch.h"

namespace longdecode::cuda::gqa::sm80 {

template <int kInstance>
cudaError_t launch(const Pools& pools, Params params, bool may_split, cudaStream_t stream) {
  return launch_kernels<kInstance>(gqa_decode_kernel<kInstance>, params, may_split, stream, pools);
}

}  // namespace longdecode::cuda::gqa::sm80

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LAUNCH_CUH_
