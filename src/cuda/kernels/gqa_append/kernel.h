#ifndef LONGDECODE_CUDA_KERNELS_GQA_APPEND_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_GQA_APPEND_KERNEL_H_

#include <cuda_runtime_api.h>

#include "cuda/kernels/gqa_append/params.h"
#include "longdecode/types.h"

namespace longdecode::cuda::gqa_append {

// num_ctas = pairs (sequence, kv head) * params.pair_ctas. to: kF16 or kBF16. num_threads: a warp
// per quad of a page where pages are quantised.
cudaError_t launch(const Params& params, DType from, DType to, int64_t num_ctas,
                   int32_t num_threads, cudaStream_t stream);

}  // namespace longdecode::cuda::gqa_append

#endif  // LONGDECODE_CUDA_KERNELS_GQA_APPEND_KERNEL_H_
