// The launch functions of all instances, one translation unit each.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LAUNCH_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/gqa_decode/params.h"
#include "cuda/kernels/gqa_decode/sm80/pools.h"

namespace longdecode::cuda::gqa::sm80 {

// may_split: the merge kernel follows. Sets params.num_stages and ring_offset.
template <int kInstance>
cudaError_t launch(const Pools& pools, Params params, bool may_split, cudaStream_t stream);

}  // namespace longdecode::cuda::gqa::sm80

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_LAUNCH_H_
