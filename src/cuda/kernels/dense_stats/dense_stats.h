// The statistics of dense attention, GQA and MLA: what is visible is attended.
#ifndef LONGDECODE_CUDA_KERNELS_DENSE_STATS_DENSE_STATS_H_
#define LONGDECODE_CUDA_KERNELS_DENSE_STATS_DENSE_STATS_H_

#include <cuda_runtime_api.h>

#include "longdecode/attention.h"

namespace longdecode::cuda {

// Writes what args.stats asks for; nothing is launched if that is nothing.
Status write_dense_stats(const DecodeDesc& desc, const DecodeArgs& args, cudaStream_t stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_KERNELS_DENSE_STATS_DENSE_STATS_H_
