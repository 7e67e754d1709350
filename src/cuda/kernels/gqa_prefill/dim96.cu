#include "cuda/kernels/gqa_prefill/kernel.cuh"

namespace longdecode::cuda::gqa_prefill {

template cudaError_t launch<96>(const Params& params, bool two_plane, cudaStream_t stream);

}  // namespace longdecode::cuda::gqa_prefill
