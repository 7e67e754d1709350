// Launches that may start while the kernel before them still runs (programmatic dependent launch):
// the kernel calls ptx::wait_dependency before it touches what earlier kernels write. One that is
// compiled for sm_80 cannot, and starts when the kernel before has ended.
#ifndef LONGDECODE_CUDA_HOST_LAUNCH_H_
#define LONGDECODE_CUDA_HOST_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

namespace longdecode::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  int64_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;      // CTAs of a cluster, along x
  bool is_for_sm80 = false;  // the kernel is compiled for sm_80 alone, whatever runs it
};

template <class... Parameters, class... Arguments>
cudaError_t launch_programmatic(void (*kernel)(Parameters...), const LaunchShape& shape,
                                cudaStream_t stream, Arguments&&... arguments) {
  constexpr int64_t kAllowedAnyway = 48 * 1024;
  if (shape.shared_bytes > kAllowedAnyway) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (!shape.is_for_sm80) {
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[num_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[num_attributes++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_HOST_LAUNCH_H_
