// Device memory of the benchmark, filled with values that are like weights.
#ifndef LONGDECODE_BENCHMARKS_GPU_MODEL_DEVICE_MEMORY_H_
#define LONGDECODE_BENCHMARKS_GPU_MODEL_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "cache/device_buffer.h"
#include "cuda/host/status.h"
#include "ops/backends.h"

namespace longdecode::gpu_bench {

inline Result<DeviceBuffer> zeros(int64_t num_bytes, const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(DeviceType::kCuda));
  LD_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::create(num_bytes, *backend, device));
  LD_RETURN_IF_ERROR(cuda::cuda_status(cudaMemset(buffer.data(), 0, static_cast<size_t>(num_bytes)),
                                       "cudaMemset"));
  return buffer;
}

inline Result<DeviceBuffer> upload(const std::vector<float>& values, const DeviceInfo& device) {
  const size_t num_bytes = values.size() * sizeof(float);
  LD_ASSIGN_OR_RETURN(DeviceBuffer buffer, zeros(static_cast<int64_t>(num_bytes), device));
  LD_RETURN_IF_ERROR(cuda::cuda_status(
      cudaMemcpy(buffer.data(), values.data(), num_bytes, cudaMemcpyHostToDevice), "upload"));
  return buffer;
}

// bf16 numbers around +-0.02 with random mantissas, a pattern of 4 MiB repeated.
inline Result<DeviceBuffer> random_bf16(int64_t count, const DeviceInfo& device) {
  std::vector<uint16_t> bits(int64_t{2} << 20);
  uint32_t state = 1;
  for (uint16_t& x : bits) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<uint16_t>((state >> 16 & 0x80ffu) | 0x3c00u);
  }
  LD_ASSIGN_OR_RETURN(DeviceBuffer buffer, zeros(2 * count, device));
  const int64_t pattern_bytes = 2 * static_cast<int64_t>(bits.size());
  for (int64_t begin = 0; begin < 2 * count; begin += pattern_bytes) {
    const auto num_bytes = static_cast<size_t>(std::min(pattern_bytes, 2 * count - begin));
    LD_RETURN_IF_ERROR(cuda::cuda_status(
        cudaMemcpy(buffer.data() + begin, bits.data(), num_bytes, cudaMemcpyHostToDevice), "fill"));
  }
  return buffer;
}

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_GPU_MODEL_DEVICE_MEMORY_H_
