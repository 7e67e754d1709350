// Which kernel of the family serves a descriptor, and the DecodeKernel that runs it.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SELECT_H_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SELECT_H_

#include <memory>

#include "base/backend.h"

namespace longdecode::cuda {

// Pure. desc.format.op is kMla. "cuda/mla_decode": both products are transposed;
// "cuda/mla_decode_rows": more than 32 query rows, S = Q K^T and O^T = V^T P^T.
Result<KernelChoice> select_mla_decode(const DecodeDesc& desc, const DeviceInfo& device);
Result<std::unique_ptr<DecodeKernel>> make_mla_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SELECT_H_
