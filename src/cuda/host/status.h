// CUDA errors as Status.
#ifndef LONGDECODE_CUDA_HOST_STATUS_H_
#define LONGDECODE_CUDA_HOST_STATUS_H_

#include <cuda_runtime_api.h>

#include "base/errors.h"

namespace longdecode::cuda {

inline StatusCode status_code(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return StatusCode::kOutOfMemory;
  const bool no_device = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                         error == cudaErrorInvalidDevice;
  return no_device ? StatusCode::kUnavailable : StatusCode::kInternal;
}

// `what` names the call or kernel that failed.
inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  if (error == cudaErrorInsufficientDriver) {
    return make_status(status_code(error),
                       "{}: there is no NVIDIA driver (libcuda.so.1), or one that is too old",
                       what);
  }
  return make_status(status_code(error), "{}: CUDA error {} ({})", what, cudaGetErrorName(error),
                     cudaGetErrorString(error));
}

// Makes a device current for its lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device_idx) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device_idx) {
      error_ = cudaSetDevice(device_idx);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  Status status() const { return cuda_status(error_, "cudaSetDevice"); }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_HOST_STATUS_H_
