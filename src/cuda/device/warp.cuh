// What a whole warp computes together.
#ifndef LONGDECODE_CUDA_DEVICE_WARP_CUH_
#define LONGDECODE_CUDA_DEVICE_WARP_CUH_

#include <cstdint>

namespace longdecode::cuda {

inline constexpr uint32_t kFullWarp = 0xffffffffu;

// The sum of the lane's value and those of the lanes before it.
__device__ __forceinline__ int warp_inclusive_sum(int value, int lane) {
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int before = __shfl_up_sync(kFullWarp, value, offset);
    if (lane >= offset) value += before;
  }
  return value;
}

// The sum over the warp, in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(kFullWarp, value, offset);
  }
  return value;
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_WARP_CUH_
