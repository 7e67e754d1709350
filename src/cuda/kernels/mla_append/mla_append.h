#ifndef LONGDECODE_CUDA_KERNELS_MLA_APPEND_MLA_APPEND_H_
#define LONGDECODE_CUDA_KERNELS_MLA_APPEND_MLA_APPEND_H_

#include "longdecode/kv_cache.h"

namespace longdecode::cuda {

// Writes the new latent rows of every sequence to their pages, rounding to the cache's dtype.
Status append_mla(const AppendArgs& args, const DeviceInfo& device, StreamHandle stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_MLA_APPEND_MLA_APPEND_H_
