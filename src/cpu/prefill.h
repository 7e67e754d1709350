// Causal attention of a chunk of new tokens over a cache of any format.
#ifndef LONGDECODE_CPU_PREFILL_H_
#define LONGDECODE_CPU_PREFILL_H_

#include "base/backend.h"

namespace longdecode::cpu {

// args satisfy the contract of PrefillArgs. kOutOfMemory when the scratch of a thread (about 1 MB)
// cannot be had.
Status prefill(const PrefillArgs& args, const DeviceInfo& device);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_PREFILL_H_
