// Dense decode attention over a plain paged cache: GQA, and MLA in the absorbed form (one latent
// row is the key, its prefix the value).
#ifndef LONGDECODE_CPU_DENSE_DECODE_H_
#define LONGDECODE_CPU_DENSE_DECODE_H_

#include <memory>

#include "base/backend.h"

namespace longdecode::cpu {

// Tokens per split: a function of the descriptor alone, so that the bits of a result depend neither
// on the number of threads nor on the other sequences. At most kMaxSplits per sequence.
inline constexpr int64_t kMaxSplits = 64;
int64_t dense_tokens_per_split(const DecodeDesc& desc);

// "amx_bf16" or what dispatched_isa says.
const char* dense_isa(const DecodeDesc& desc, const DeviceInfo& device);

// desc: validated, scale resolved, plain keys, method dense.
std::unique_ptr<DecodeKernel> make_dense_decode(const DecodeDesc& desc, const DeviceInfo& device);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_DENSE_DECODE_H_
