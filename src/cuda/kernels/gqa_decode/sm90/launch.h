// The launch functions of all instances, one translation unit each.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/kernels/gqa_decode/params.h"

namespace longdecode::cuda::gqa::sm90 {

// k_map, v_map: encode_paged_heads of the pools. may_split: the merge kernel follows. Sets
// params.num_stages and ring_offset.
template <int kInstance>
cudaError_t launch(const CUtensorMap& k_map, const CUtensorMap& v_map, Params params,
                   bool may_split, cudaStream_t stream);

}  // namespace longdecode::cuda::gqa::sm90

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_H_
