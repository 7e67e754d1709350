// The DecodeKernel of the family on sm_90a: instance, grid and workspace of a run.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_DECODE_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_DECODE_KERNEL_H_

#include <memory>

#include "base/backend.h"
#include "cuda/kernels/mla_decode/sm90/tile.h"

namespace longdecode::cuda::mla_sm90 {

// What the host decides about a run, from shapes alone (lengths stay on the device).
struct RunShape {
  int32_t instance = 0;        // of kInstances
  int32_t num_row_blocks = 0;  // CTAs that share a worker's tiles, each with its own query rows
  int32_t num_workers = 0;
  int32_t num_splits = 0;  // of the strided schedule; 0: never strided
  bool may_split = false;  // partial results may arise
};
RunShape run_shape(const DecodeDesc& desc, const DeviceInfo& device, int32_t batch,
                   int32_t query_len);

std::unique_ptr<DecodeKernel> make_decode_kernel(const DecodeDesc& desc, const DeviceInfo& device);

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_DECODE_KERNEL_H_
