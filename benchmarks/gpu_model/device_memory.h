// Device memory of the benchmark, filled with values that are like weights.
#ifndef LONGDECODE_BENCHMARKS_GPU_MODEL_DEVICE_MEMORY_H_
#define LONGDECODE_BENCHMARKS_GPU_MODEL_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "cuda/host/status.h"

namespace longdecode::gpu_bench {

class DeviceMemory {
 public:
  // bf16 numbers around +-0.02 with random mantissas, a pattern of 4 MiB repeated.
  static Result<std::unique_ptr<DeviceMemory>> random_bf16(int64_t count) {
    std::vector<uint16_t> bits(int64_t{2} << 20);
    uint32_t state = 1;
    for (uint16_t& x : bits) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<uint16_t>((state >> 16 & 0x80ffu) | 0x3c00u);
    }
    LD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, zeros(2 * count));
    const int64_t pattern_bytes = 2 * static_cast<int64_t>(bits.size());
    for (int64_t begin = 0; begin < 2 * count; begin += pattern_bytes) {
      const int64_t num_bytes = std::min(pattern_bytes, 2 * count - begin);
      LD_RETURN_IF_ERROR(
          cuda::cuda_status(cudaMemcpy(static_cast<char*>(memory->data_) + begin, bits.data(),
                                       num_bytes, cudaMemcpyHostToDevice),
                            "fill"));
    }
    return memory;
  }
  static Result<std::unique_ptr<DeviceMemory>> of(const std::vector<float>& values) {
    const int64_t num_bytes = 4 * static_cast<int64_t>(values.size());
    LD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, zeros(num_bytes));
    LD_RETURN_IF_ERROR(cuda::cuda_status(
        cudaMemcpy(memory->data_, values.data(), num_bytes, cudaMemcpyHostToDevice), "upload"));
    return memory;
  }
  static Result<std::unique_ptr<DeviceMemory>> zeros(int64_t num_bytes) {
    std::unique_ptr<DeviceMemory> memory(new DeviceMemory);
    LD_RETURN_IF_ERROR(cuda::cuda_status(cudaMalloc(&memory->data_, num_bytes), "cudaMalloc"));
    LD_RETURN_IF_ERROR(cuda::cuda_status(cudaMemset(memory->data_, 0, num_bytes), "cudaMemset"));
    return memory;
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  DeviceMemory() = default;
  void* data_ = nullptr;
};
using Memory = std::unique_ptr<DeviceMemory>;

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_GPU_MODEL_DEVICE_MEMORY_H_
