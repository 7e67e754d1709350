// Launches an instance.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_CUH_

#include "cuda/kernels/mla_decode/sm90/kernel.cuh"
#include "cuda/kernels/mla_decode/sm90/launch.h"

namespace longdecode::cuda::mla_sm90 {

template <int kInstance>
cudaError_t launch(const CUtensorMap& k_map, const CUtensorMap& k_chunk_map, const Params& params,
                   cudaStream_t stream) {
  using C = Config<kInstances[kInstance]>;
  constexpr int kSharedBytes = sizeof(typename C::SharedStorage);
  static_assert(partial_bytes(C::kRows) == 16 * C::kPartialUnits);
  const cudaError_t error = cudaFuncSetAttribute(
      mla_decode_kernel<kInstance>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  // CTAs wait for partials of others: all must be resident. (It costs nothing.)
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(params.num_workers.value * params.num_row_blocks.value);
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = params.may_split ? 1 : 0;
  return cudaLaunchKernelEx(&config, mla_decode_kernel<kInstance>, k_map, k_chunk_map, params);
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_CUH_
