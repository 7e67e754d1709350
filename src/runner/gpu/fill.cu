#include "runner/gpu/fill.h"

#include <cuda_bf16.h>

namespace longdecode::runner {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 16;

__device__ __forceinline__ uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Two normal numbers from 64 random bits (Box and Muller).
__device__ __forceinline__ float2 normal_pair(uint64_t bits) {
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float angle = static_cast<float>(bits & 0xffffff) * (0x1p-24f * 6.2831853f);
  const float radius = sqrtf(-2.0f * __logf(u));
  return make_float2(radius * __cosf(angle), radius * __sinf(angle));
}

__global__ void normal_kernel(__nv_bfloat162* data, int64_t num_pairs, float size, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < num_pairs;
       i += int64_t{kThreads} * gridDim.x) {
    const float2 pair = normal_pair(mix(mix(seed) + static_cast<uint64_t>(i)));
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
