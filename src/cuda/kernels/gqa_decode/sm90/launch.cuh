// Launches an instance: the decode kernel and, where a pair may be split, the merge kernel.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_CUH_

#include "cuda/host/launch.h"
#include "cuda/kernels/gqa_decode/launch_merge.cuh"
#include "cuda/kernels/gqa_decode/sm90/kernel.cuh"
#include "cuda/kernels/gqa_decode/sm90/launch.h"

namespace longdecode::cuda::gqa::sm90 {

template <int kInstance>
cudaError_t launch(const CUtensorMap& k_map, const CUtensorMap& v_map, Params params,
                   bool may_split, cudaStream_t stream) {
  using C = Config<kInstances[kInstance]>;
  params.num_stages = params.cta_row_groups == 1 ? C::kStagesOfTwo : C::kStagesOfOne;
  params.ring_offset = C::ring_offset(params.cta_row_groups);
  LaunchShape shape;
  shape.grid = dim3(params.num_workers.value * params.num_row_blocks.value);
  shape.block = dim3(32 * (C::kTokenWarps * params.cta_row_groups + 1));
  shape.shared_bytes = C::shared_bytes(params.cta_row_groups);
  const cudaError_t error =
      launch_programmatic(gqa_decode_kernel<kInstance>, shape, stream, k_map, v_map, params);
  if (error != cudaSuccess || !may_split) return error;
  return launch_merge<kInstance>(params, stream);
}

}  // namespace longdecode::cuda::gqa::sm90

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM90_LAUNCH_CUH_
