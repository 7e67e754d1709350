#ifndef LONGDECODE_CUDA_KERNELS_ROWS_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_ROWS_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/rows/params.h"

namespace longdecode::cuda::rows {

cudaError_t launch(const EmbedParams& params, cudaStream_t stream);
cudaError_t launch(const RmsNormParams& params, cudaStream_t stream);
cudaError_t launch(const SiluUpParams& params, cudaStream_t stream);
cudaError_t launch(const FillRowsParams& params, cudaStream_t stream);

}  // namespace longdecode::cuda::rows

#endif  // LONGDECODE_CUDA_KERNELS_ROWS_KERNEL_H_
