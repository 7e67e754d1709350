// Where K and V are, for kernels that load them without tensor maps.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_POOLS_H_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_POOLS_H_

#include <cstdint>

namespace longdecode::cuda::gqa::sm80 {

// [num_pages, num_kv_heads, page_size, head_dim] in device memory; strides in elements.
struct Pool {
  const uint16_t* g_rows;
  int64_t page_stride, head_stride, token_stride;
};

struct Pools {
  Pool k, v;
};

}  // namespace longdecode::cuda::gqa::sm80

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_SM80_POOLS_H_
