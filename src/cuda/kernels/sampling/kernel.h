#ifndef LONGDECODE_CUDA_KERNELS_SAMPLING_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_SAMPLING_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/sampling/params.h"

namespace longdecode::cuda::sampling {

// greedy: the options are not read.
cudaError_t launch(const Params& params, bool greedy, cudaStream_t stream);

}  // namespace longdecode::cuda::sampling

#endif  // LONGDECODE_CUDA_KERNELS_SAMPLING_KERNEL_H_
