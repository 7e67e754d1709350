// Host entries of the kernels: what decode_kernel.cc decides, launch.cuh carries out.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_H_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/ffd_decode/params.h"
#include "cuda/kernels/ffd_decode/tile.h"

namespace longdecode::cuda::ffd {

template <int kInstance>
cudaError_t launch(const Params& params, int32_t num_ctas, int32_t shared_bytes,
                   cudaStream_t stream);

// Before it, when batch > kSmallBatch.
cudaError_t launch_schedule(const Params& params, cudaStream_t stream);

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_LAUNCH_H_
