// Launches an instance.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_CUH_

#include "cuda/kernels/gqa_decode/launch.cuh"
#include "cuda/kernels/gqa_decode/sm90/kernel.cuh"
#include "cuda/kernels/gqa_decode/sm90/launch.h"

namespace longdecode::cuda::gqa::sm90 {

template <int kInstance>
cudaError_t launch(const CUtensorMap& k_map, const CUtensorMap& v_map, Params params,
                   bool may_split, cudaStream_t stream) {
  return launch_kernels<kInstance>(gqa_decode_kernel<kInstance>, params, may_split, stream, k_map,
                                   v_map);
}

}  // namespace longdecode::cuda::gqa::sm90

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_CUH_
