#include "cuda/kernels/ffd_decode/launch.cuh"

namespace longdecode::cuda::ffd {

template cudaError_t launch<13>(const Params&, int32_t, int32_t, cudaStream_t);

}  // namespace longdecode::cuda::ffd
