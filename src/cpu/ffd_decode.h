// FFD decode attention over a two-plane cache, and dense attention over the same cache.
#ifndef LONGDECODE_CPU_FFD_DECODE_H_
#define LONGDECODE_CPU_FFD_DECODE_H_

#include <memory>

#include "base/backend.h"

namespace longdecode::cpu {

// desc has passed validation: GQA, two-plane keys, softmax_scale > 0 resolved. Bits depend on the
// descriptor and on the sequence alone: not on threads, not on the other sequences of a batch.
std::unique_ptr<DecodeKernel> make_ffd_decode(const DecodeDesc& desc, const DeviceInfo& device);

// Tokens of a split (KernelChoice).
int64_t ffd_tokens_per_split(const DecodeDesc& desc);
// Instruction set of the scan (KernelChoice).
const char* ffd_isa(const DeviceInfo& device);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_DECODE_H_
