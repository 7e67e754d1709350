#include "cuda/kernels/gqa_decode/sm90/launch.cuh"

namespace longdecode::cuda::gqa::sm90 {

template cudaError_t launch<0>(const CUtensorMap&, const CUtensorMap&, Params, bool, cudaStream_t);

}  // namespace longdecode::cuda::gqa::sm90
