#include "tests/gpu/fill.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace longdecode::gpu_test {
namespace {

constexpr int kDim = 576;

__device__ uint16_t round_to(float value, bool is_f16) {
  return is_f16 ? __half_as_ushort(__float2half_rn(value))
                : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__global__ void fill_pool_kernel(ValueRule rule, uint16_t* g_pool, int64_t page_stride,
                                 int64_t row_stride, const int32_t* g_table, int64_t table_stride,
                                 const int32_t* g_kv_lens, int32_t batch, int32_t page_size,
                                 bool is_f16) {
  for (int32_t sequence = blockIdx.y; sequence < batch; sequence += gridDim.y) {
    const int32_t kv_len = g_kv_lens[sequence];
    const int32_t end = (kv_len + page_size - 1) / page_size * page_size;
    for (int32_t token = blockIdx.x; token < end; token += gridDim.x) {
      const bool exists = token < kv_len;
      if (!exists && token % 2 == 0) continue;
      const int64_t page = g_table[sequence * table_stride + token / page_size];
      uint16_t* g_row = g_pool + page * page_stride + token % page_size * row_stride;
      for (int32_t c = threadIdx.x; c < kDim; c += blockDim.x) {
        g_row[c] = round_to(exists ? k_value(rule, sequence, token, c) : INFINITY, is_f16);
      }
    }
  }
}

__global__ void fill_query_kernel(ValueRule rule, TensorView q, const int32_t* g_query_lens,
                                  bool is_f16) {
  const int64_t num_rows = q.shape[0] * q.shape[1] * q.shape[2];
  for (int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    const int64_t head = row % q.shape[2], token = row / q.shape[2] % q.shape[1];
    const int64_t sequence = row / q.shape[2] / q.shape[1];
    uint16_t* g_row = static_cast<uint16_t*>(q.data) + sequence * q.stride[0] +
                      token * q.stride[1] + head * q.stride[2];
    const bool exists = g_query_lens == nullptr || token < g_query_lens[sequence];
    for (int32_t c = threadIdx.x; c < kDim; c += blockDim.x) {
      g_row[c] = exists ? round_to(q_value(rule, row, c), is_f16) : 0xffff;
    }
  }
}

}  // namespace

cudaError_t fill_pool(const ValueRule& rule, const TensorView& pool, const int32_t* g_block_table,
                      int64_t block_table_stride, const int32_t* g_kv_lens, int32_t batch,
                      int32_t page_size, cudaStream_t stream) {
  const dim3 grid(batch > 256 ? 16 : 512, batch < 16384 ? batch : 16384);
  fill_pool_kernel<<<grid, 192, 0, stream>>>(
      rule, static_cast<uint16_t*>(pool.data), pool.stride[0], pool.stride[2], g_block_table,
      block_table_stride, g_kv_lens, batch, page_size, pool.dtype == DType::kF16);
  return cudaGetLastError();
}

cudaError_t fill_query(const ValueRule& rule, const TensorView& q, const int32_t* g_query_lens,
                       cudaStream_t stream) {
  fill_query_kernel<<<2112, 192, 0, stream>>>(rule, q, g_query_lens, q.dtype == DType::kF16);
  return cudaGetLastError();
}

}  // namespace longdecode::gpu_test
