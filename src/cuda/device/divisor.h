// Division by a number that is fixed for a launch.
#ifndef LONGDECODE_CUDA_DEVICE_DIVISOR_H_
#define LONGDECODE_CUDA_DEVICE_DIVISOR_H_

#include <bit>
#include <cstdint>

namespace longdecode::cuda {

// For 0 <= n < 2^31: n / value = (mulhi(n, multiplier) + n) >> shift.
struct Divisor {
  uint32_t value, multiplier, shift;
};

// 0 stays 0 (and must not be divided by).
inline Divisor make_divisor(int32_t value) {
  const auto d = static_cast<uint32_t>(value);
  if (d == 0) return {0, 0, 0};
  const auto shift = static_cast<uint32_t>(std::bit_width(d - 1));
  const uint64_t excess = (uint64_t{1} << shift) - d;
  return {d, static_cast<uint32_t>((excess << 32) / d + 1), shift};
}

#ifdef __CUDACC__
__device__ __forceinline__ int divide(int n, const Divisor& d) {
  return static_cast<int>((__umulhi(n, d.multiplier) + n) >> d.shift);
}
__device__ __forceinline__ int divide_up(int n, const Divisor& d) {
  return divide(n + static_cast<int>(d.value) - 1, d);
}
#endif

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_DEVICE_DIVISOR_H_
