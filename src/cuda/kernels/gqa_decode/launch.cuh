// Launches an instance: the decode kernel and, where a pair may be split, the merge kernel.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include "cuda/host/launch.h"
#include "cuda/kernels/gqa_decode/merge.cuh"

namespace longdecode::cuda::gqa {

// Warps that share a slice so that each has at most kMergeLoads splits of a usual pair.
inline int merge_warps_per_slice(const Params& params) {
  const int pairs = params.batch * params.num_kv_heads;
  const int splits = params.fixed_splits ? static_cast<int>(params.num_splits.value)
                                         : static_cast<int>(params.num_workers.value) / pairs + 2;
  int warps = 1;
  while (warps < kMergeWarps && splits > kMergeLoads * warps) warps *= 2;
  return warps;
}

template <int kInstance>
cudaError_t launch_merge(const Params& params, cudaStream_t stream) {
  const int warps_per_slice = merge_warps_per_slice(params);
  const int slices_per_cta = kMergeWarps / warps_per_slice;
  const int slices = Config<kInstances[kInstance]>::kDimBlocks;
  LaunchShape shape;
  shape.grid = dim3((slices + slices_per_cta - 1) / slices_per_cta,
                    params.merges_by_pair ? params.batch * params.num_kv_heads
                                          : static_cast<int>(params.num_workers.value),
                    params.num_row_groups);
  shape.block = dim3(32 * kMergeWarps);
  shape.is_for_sm80 = kInstances[kInstance].is_sm80;
  return launch_programmatic(gqa_merge_kernel<kInstance>, shape, stream, params, warps_per_slice);
}

// `kernel` gets `sources`, where K and V are, and params.
template <int kInstance, class Kernel, class... Sources>
cudaError_t launch_kernels(Kernel* kernel, Params params, bool may_split, cudaStream_t stream,
                           const Sources&... sources) {
  using C = Config<kInstances[kInstance]>;
  params.num_stages = C::num_stages(params.cta_row_groups);
  params.ring_offset = C::ring_offset(params.cta_row_groups);
  LaunchShape shape;
  shape.grid = dim3(params.num_workers.value * params.num_row_blocks.value);
  shape.block = dim3(32 * (C::kTokenWarps * params.cta_row_groups + 1));
  shape.shared_bytes = C::shared_bytes(params.cta_row_groups);
  shape.is_for_sm80 = kInstances[kInstance].is_sm80;
  const cudaError_t error = launch_programmatic(kernel, shape, stream, sources..., params);
  if (error != cudaSuccess || !may_split) return error;
  return launch_merge<kInstance>(params, stream);
}

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_LAUNCH_CUH_
