// Which kernel of the family serves a descriptor, and the DecodeKernel that runs it.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SELECT_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SELECT_H_

#include <memory>

#include "base/backend.h"

namespace longdecode::cuda {

// Pure. desc.format.op is kGqa, desc.method kDense.
Result<KernelChoice> select_gqa_decode(const DecodeDesc& desc, const DeviceInfo& device);
Result<std::unique_ptr<DecodeKernel>> make_gqa_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SELECT_H_
