// The DecodeKernel, and what a descriptor takes on a device.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_DECODE_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_DECODE_KERNEL_H_

#include <memory>

#include "base/backend.h"

namespace longdecode::cuda::ffd {

// How a descriptor is run. Independent of the batch and the lengths of a run.
struct RunPlan {
  int32_t instance = -1;  // -1: none has the head_dim and dtype
  int32_t num_row_blocks = 1;
  int32_t pages_per_split = 0;  // batch-invariant: fixed; else 0
  int64_t num_slots = 0;        // of partial results
  int32_t num_stages = 0;       // of a warp's ring; 0: the shared memory is too small
  int32_t shared_bytes = 0;     // with at least one stage
};
RunPlan plan_run(const DecodeDesc& desc, const DeviceInfo& device, int32_t query_len);

std::unique_ptr<DecodeKernel> make_decode_kernel(const DecodeDesc& desc, const DeviceInfo& device);

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_DECODE_KERNEL_H_
