#include "runner/gpu/fill.h"

#include <cuda_bf16.h>

#include "runner/gpu/random.cuh"

namespace longdecode::runner {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;

__global__ void normal_kernel(__nv_bfloat162* data, int64_t num_pairs, float size, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < num_pairs;
       i += int64_t{kThreads} * gridDim.x) {
    const float2 pair = normal_pair(split_mix(split_mix(seed) + static_cast<uint64_t>(i)));
    data[i] = __floats2bfloat162_rn(size * pair.x, size * pair.y);
  }
}

__global__ void constant_kernel(float* data, int64_t count, float value) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count;
       i += int64_t{kThreads} * gridDim.x) {
    data[i] = value;
  }
}

unsigned num_blocks(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace

// count is even: matrices have a multiple of 8 columns.
cudaError_t fill_normal_bf16(uint16_t* data, int64_t count, float size, uint64_t seed) {
  normal_kernel<<<num_blocks(count / 2), kThreads>>>(reinterpret_cast<__nv_bfloat162*>(data),
                                                     count / 2, size, seed);
  return cudaGetLastError();
}

cudaError_t fill_f32(float* data, int64_t count, float value) {
  constant_kernel<<<num_blocks(count), kThreads>>>(data, count, value);
  return cudaGetLastError();
}

}  // namespace longdecode::runner
