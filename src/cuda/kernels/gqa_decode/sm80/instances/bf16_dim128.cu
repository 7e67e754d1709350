#include "cuda/kernels/gqa_decode/sm80/launch.cuh"

namespace longdecode::cuda::gqa::sm80 {

template cudaError_t launch<8>(const Pools&, Params, bool, cudaStream_t);

}  // namespace longdecode::cuda::gqa::sm80
