#ifndef LONGDECODE_CUDA_KERNELS_GQA_PREFILL_PREFILL_H_
#define LONGDECODE_CUDA_KERNELS_GQA_PREFILL_PREFILL_H_

#include "base/backend.h"

namespace longdecode::cuda {

// PrefillArgs of a GQA cache in bf16, without a soft cap, a sliding window and learned sinks.
// kUnsupported lists what does not hold. Keys of two planes are rounded to bf16.
Status prefill_gqa(const PrefillArgs& args, const DeviceInfo& device, StreamHandle stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_GQA_PREFILL_PREFILL_H_
