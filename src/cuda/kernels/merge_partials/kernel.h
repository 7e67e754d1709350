#ifndef LONGDECODE_CUDA_KERNELS_MERGE_PARTIALS_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_MERGE_PARTIALS_KERNEL_H_

#include <cuda_runtime_api.h>

#include "longdecode/attention.h"

namespace longdecode::cuda {

cudaError_t launch_merge_partials(const MergeArgs& args, cudaStream_t stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_MERGE_PARTIALS_KERNEL_H_
