#ifndef LONGDECODE_CUDA_KERNELS_GQA_APPEND_GQA_APPEND_H_
#define LONGDECODE_CUDA_KERNELS_GQA_APPEND_GQA_APPEND_H_

#include "longdecode/kv_cache.h"

namespace longdecode::cuda {

// Writes the new keys and values of every sequence, rounded to the cache's dtype, and quantises the
// pages of a two-plane cache that become due: the bytes are those of the CPU backend.
Status append_gqa(const AppendArgs& args, const DeviceInfo& device, StreamHandle stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_GQA_APPEND_GQA_APPEND_H_
