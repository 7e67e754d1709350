// Host entry of one instance: what select.cc decides, launch.cuh carries out.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_H_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/kernels/mla_decode/sm90/params.h"
#include "cuda/kernels/mla_decode/sm90/tile.h"

namespace longdecode::cuda::mla_sm90 {

template <int kInstance>
cudaError_t launch(const CUtensorMap& k_map, const CUtensorMap& k_chunk_map, const Params& params,
                   cudaStream_t stream);

// Bytes of one partial result.
constexpr int64_t partial_bytes(int32_t rows) { return (int64_t{rows} * 128 + rows) * 16; }

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LAUNCH_H_
