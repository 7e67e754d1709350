// Memory of one side of a comparison between the CPU and a CUDA device.
#ifndef LONGDECODE_TESTS_GPU_SIDE_MEMORY_H_
#define LONGDECODE_TESTS_GPU_SIDE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/gpu/mla_workload.h"

namespace longdecode::gpu_test {

// A copy of bytes: device memory of the GPU's side, pinned host memory of the CPU's, so that both
// are written and read alike.
class SideMemory {
 public:
  SideMemory(const std::vector<uint8_t>& bytes, bool on_host) : on_host_(on_host) {
    const size_t size = bytes.size() + 64;  // never 0
    check_cuda(on_host ? cudaMallocHost(&data_, size) : cudaMalloc(&data_, size), "allocate");
    check_cuda(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyDefault), "upload");
  }
  ~SideMemory() { on_host_ ? cudaFreeHost(data_) : cudaFree(data_); }
  SideMemory(const SideMemory&) = delete;
  SideMemory& operator=(const SideMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  bool on_host_;
};

}  // namespace longdecode::gpu_test

#endif  // LONGDECODE_TESTS_GPU_SIDE_MEMORY_H_
