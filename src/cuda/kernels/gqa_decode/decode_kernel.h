// The DecodeKernel of the family: instance, grid and workspace of a run.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_DECODE_KERNEL_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_DECODE_KERNEL_H_

#include <memory>

#include "base/backend.h"
#include "cuda/kernels/gqa_decode/tile.h"

namespace longdecode::cuda::gqa {

// -1: none.
int32_t instance_for(const DecodeDesc& desc, const DeviceInfo& device);

// What the host decides about a run, from shapes alone (lengths stay on the device).
struct RunShape {
  int32_t num_row_groups = 0;  // of a pair (sequence, kv head)
  int32_t cta_row_groups = 0;
  int32_t num_row_blocks = 0;  // CTAs that share a worker's tiles, each with its own row groups
  int32_t num_workers = 0;
  int32_t num_splits = 0;  // of a pair in the batch-invariant mode, else 0
  bool may_split = false;  // partial results may arise: the merge kernel runs
  bool merges_by_pair = false;
};
RunShape run_shape(const DecodeDesc& desc, const DeviceInfo& device, int32_t batch,
                   int32_t query_len);

std::unique_ptr<DecodeKernel> make_decode_kernel(const DecodeDesc& desc, const DeviceInfo& device);

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_DECODE_KERNEL_H_
