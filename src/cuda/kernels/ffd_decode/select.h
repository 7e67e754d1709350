// Which kernel of the family serves a descriptor, and the DecodeKernel that runs it.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_SELECT_H_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_SELECT_H_

#include <memory>

#include "base/backend.h"

namespace longdecode::cuda {

// Pure. desc.format is GQA with two-plane keys; the method may be dense.
Result<KernelChoice> select_ffd_decode(const DecodeDesc& desc, const DeviceInfo& device);
Result<std::unique_ptr<DecodeKernel>> make_ffd_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_SELECT_H_
