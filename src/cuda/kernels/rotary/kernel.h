#ifndef LONGDECODE_CUDA_KERNELS_ROTARY_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_ROTARY_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/rotary/params.h"

namespace longdecode::cuda::rotary {

cudaError_t launch(const Params& params, cudaStream_t stream);

// page_threads: gqa_append::page_threads of the format, 0 for plain keys.
cudaError_t launch_append(AppendParams params, int32_t page_threads, cudaStream_t stream);

}  // namespace longdecode::cuda::rotary

#endif  // LONGDECODE_CUDA_KERNELS_ROTARY_KERNEL_H_
