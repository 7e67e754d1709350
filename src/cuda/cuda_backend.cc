#include "cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/host/status.h"
#include "cuda/kernels/ffd_decode/select.h"
#include "cuda/kernels/gqa_append/gqa_append.h"
#include "cuda/kernels/gqa_decode/select.h"
#include "cuda/kernels/gqa_prefill/prefill.h"
#include "cuda/kernels/merge_partials/merge_partials.h"
#include "cuda/kernels/mla_append/mla_append.h"
#include "cuda/kernels/mla_decode/select.h"

namespace longdecode::cuda {
namespace {

Status unavailable(cudaError_t error, const char* what) {
  cudaGetLastError();  // or the next launch would report this error
  if (const std::string problem = driver_problem(error); !problem.empty()) {
    return make_status(StatusCode::kUnavailable, "no CUDA device: {}", problem);
  }
  return make_status(StatusCode::kUnavailable, "no CUDA device: {} says {} ({})", what,
                     cudaGetErrorName(error), cudaGetErrorString(error));
}

class CudaBackend final : public Backend {
 public:
  Result<DeviceInfo> detect(int32_t device_idx) const override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) return unavailable(error, "cudaGetDeviceCount");
    if (device_idx < 0 || device_idx >= count) {
      return make_status(StatusCode::kUnavailable,
                         "device_idx is {}; this machine has {} CUDA devices", device_idx, count);
    }
    cudaDeviceProp properties;
    LD_RETURN_IF_ERROR(
        cuda_status(cudaGetDeviceProperties(&properties, device_idx), "cudaGetDeviceProperties"));
    DeviceInfo info;
    info.type = DeviceType::kCuda;
    info.device_idx = device_idx;
    std::memcpy(info.name, properties.name,
                std::min(std::strlen(properties.name), sizeof(info.name) - 1));
    info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    info.last_level_cache_bytes = properties.l2CacheSize;
    info.compute_capability = 10 * properties.major + properties.minor;
    info.num_sms = properties.multiProcessorCount;
    info.shared_memory_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    return info;
  }

  Result<KernelChoice> select(const DecodeDesc& desc, const DeviceInfo& device) const override {
    if (desc.format.op == Op::kMla) return select_mla_decode(desc, device);
    if (desc.format.keys == KeyEncoding::kTwoPlane) return select_ffd_decode(desc, device);
    return select_gqa_decode(desc, device);
  }

  Result<std::unique_ptr<DecodeKernel>> make_decode(const DecodeDesc& desc,
                                                    const DeviceInfo& device) const override {
    if (desc.format.op == Op::kMla) return make_mla_decode(desc, device);
    if (desc.format.keys == KeyEncoding::kTwoPlane) return make_ffd_decode(desc, device);
    return make_gqa_decode(desc, device);
  }

  Status append(const AppendArgs& args, const DeviceInfo& device,
                StreamHandle stream) const override {
    if (args.kv.format.op == Op::kGqa) return append_gqa(args, device, stream);
    return append_mla(args, device, stream);
  }

  Status prefill(const PrefillArgs& args, const DeviceInfo& device,
                 StreamHandle stream) const override {
    return prefill_gqa(args, device, stream);
  }

  Status merge(const MergeArgs& args, const DeviceInfo& device,
               StreamHandle stream) const override {
    return cuda::merge_partials(args, device, stream);
  }

  Result<void*> allocate(int64_t num_bytes, const DeviceInfo& device) const override {
    const DeviceGuard guard(device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, num_bytes > 0 ? num_bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free_bytes = 0;
      size_t total_bytes = 0;
      LD_RETURN_IF_ERROR(cuda_status(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
      return out_of_memory("{} bytes of GPU memory are needed at once; {} of {} are free",
                           num_bytes, free_bytes, total_bytes);
    }
    LD_RETURN_IF_ERROR(cuda_status(error, "cudaMalloc"));
    return memory;
  }

  void deallocate(void* memory, const DeviceInfo& device) const override {
    const DeviceGuard guard(device.device_idx);
    cudaFree(memory);
  }

  Status copy(void* to, const void* from, int64_t num_bytes, const DeviceInfo& device,
              StreamHandle stream) const override {
    const DeviceGuard guard(device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    return cuda_status(
        cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "cudaMemcpyAsync");
  }

  bool host_readable() const override { return false; }
};

}  // namespace

const Backend& backend() {
  static const CudaBackend instance;
  return instance;
}

}  // namespace longdecode::cuda
