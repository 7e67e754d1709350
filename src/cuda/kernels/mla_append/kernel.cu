#include "cuda/kernels/mla_append/kernel.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace longdecode::cuda {
namespace {

constexpr int kThreads = kMlaKeyDim / 4;  // a thread moves 4 channels

template <DType kDType>
__device__ float4 load_4(const void* g_row, int channel) {
  if constexpr (kDType == DType::kF32) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(g_row) + channel);
  } else {
    const uint16_t* g_from = static_cast<const uint16_t*>(g_row) + channel;
    const uint2 bits = *reinterpret_cast<const uint2*>(g_from);
    float2 a, b;
    if constexpr (kDType == DType::kF16) {
      a = __half22float2(reinterpret_cast<const __half2&>(bits.x));
      b = __half22float2(reinterpret_cast<const __half2&>(bits.y));
    } else {
      a = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.x));
      b = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.y));
    }
    return make_float4(a.x, a.y, b.x, b.y);
  }
}

template <DType kDType>
__device__ uint32_t pack(float low, float high) {
  if constexpr (kDType == DType::kF16) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// A CTA moves one token; tokens of all sequences in grid x.
template <DType kFrom, DType kTo>
__global__ void append_kernel(AppendParams p) {
  const int32_t sequence = blockIdx.x / p.max_new;
  const int32_t token = blockIdx.x % p.max_new;
  const int32_t num_new = p.g_query_lens != nullptr ? p.g_query_lens[sequence] : p.max_new;
  const int32_t position = p.g_kv_lens[sequence] - num_new + token;
  if (token >= num_new || position < 0) return;
  const int32_t page = p.g_block_table[sequence * p.block_table_stride + position / p.page_size];
  constexpr int64_t kBytes = kFrom == DType::kF32 ? 4 : 2;
  const void* g_row = static_cast<const char*>(p.g_k) +
                      (sequence * p.k_batch_stride + token * p.k_token_stride) * kBytes;
  const int channel = 4 * threadIdx.x;
  const float4 v = load_4<kFrom>(g_row, channel);
  uint16_t* g_to =
      p.g_pool + page * p.page_stride + position % p.page_size * p.row_stride + channel;
  *reinterpret_cast<uint2*>(g_to) = make_uint2(pack<kTo>(v.x, v.y), pack<kTo>(v.z, v.w));
}

template <DType kFrom>
void launch_from(const AppendParams& p, DType to, int32_t grid, cudaStream_t stream) {
  if (to == DType::kF16) {
    append_kernel<kFrom, DType::kF16><<<grid, kThreads, 0, stream>>>(p);
  } else {
    append_kernel<kFrom, DType::kBF16><<<grid, kThreads, 0, stream>>>(p);
  }
}

}  // namespace

cudaError_t launch_mla_append(const AppendParams& params, DType from, DType to, int32_t num_tokens,
                              cudaStream_t stream) {
  switch (from) {
    case DType::kF32:
      launch_from<DType::kF32>(params, to, num_tokens, stream);
      break;
    case DType::kF16:
      launch_from<DType::kF16>(params, to, num_tokens, stream);
      break;
    case DType::kBF16:
      launch_from<DType::kBF16>(params, to, num_tokens, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace longdecode::cuda
