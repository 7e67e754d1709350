// Launches an instance: the decode kernel and, where a sequence may be split, the merge kernel.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_CUH_

#include "cuda/kernels/mla_decode/sm90/kernel.cuh"
#include "cuda/kernels/mla_decode/sm90/launch.h"
#include "cuda/kernels/mla_decode/sm90/merge.cuh"

namespace longdecode::cuda::mla_sm90 {

// Warps that share a slice so that each has at most kMergeLoads splits of a usual sequence.
inline int merge_warps_per_slice(const Params& params) {
  const int splits = params.num_splits.value > 0 ? static_cast<int>(params.num_splits.value) : 2;
  int warps = 1;
  while (warps < kMergeWarps && splits > 8 * warps) warps *= 2;
  return warps;
}

template <int kInstance>
cudaError_t launch_merge(const Params& params, cudaStream_t stream) {
  const bool per_sequence = params.batch <= kSmallBatch || params.fixed_splits;
  const int warps_per_slice = merge_warps_per_slice(params);
  const int ctas = Config<kInstances[kInstance]>::kRows * 4 * warps_per_slice / kMergeWarps;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas, per_sequence ? params.batch : params.num_workers.value,
                        params.num_row_blocks.value);
  config.blockDim = dim3(32 * kMergeWarps);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, mla_merge_kernel<kInstance>, params, warps_per_slice);
}

template <int kInstance>
cudaError_t launch(const CUtensorMap& k_map, const CUtensorMap& k_part_map, const Params& params,
                   bool may_split, cudaStream_t stream) {
  using C = Config<kInstances[kInstance]>;
  constexpr int kSharedBytes = sizeof(typename C::SharedStorage);
  cudaError_t error = cudaFuncSetAttribute(
      mla_decode_kernel<kInstance>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(params.num_workers.value * params.num_row_blocks.value);
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  error = cudaLaunchKernelEx(&config, mla_decode_kernel<kInstance>, k_map, k_part_map, params);
  if (error != cudaSuccess || !may_split) return error;
  return launch_merge<kInstance>(params, stream);
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_CUH_
