#ifndef LONGDECODE_CUDA_KERNELS_MERGE_PARTIALS_MERGE_PARTIALS_H_
#define LONGDECODE_CUDA_KERNELS_MERGE_PARTIALS_MERGE_PARTIALS_H_

#include "longdecode/attention.h"

namespace longdecode::cuda {

// The public merge of partial results, in device memory.
Status merge_partials(const MergeArgs& args, const DeviceInfo& device, StreamHandle stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_MERGE_PARTIALS_MERGE_PARTIALS_H_
