#include "cuda/kernels/mla_decode/sm90/launch.cuh"

namespace longdecode::cuda::mla_sm90 {

template cudaError_t launch<7>(const CUtensorMap&, const CUtensorMap&, const Params&, cudaStream_t);

}  // namespace longdecode::cuda::mla_sm90
