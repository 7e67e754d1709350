#ifndef LONGDECODE_CUDA_KERNELS_MATVEC_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_MATVEC_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/matvec/params.h"

namespace longdecode::cuda::matvec {

cudaError_t launch(Params params, int32_t num_sms, cudaStream_t stream);

}  // namespace longdecode::cuda::matvec

#endif  // LONGDECODE_CUDA_KERNELS_MATVEC_KERNEL_H_
