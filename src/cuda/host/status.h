// CUDA errors as Status.
#ifndef LONGDECODE_CUDA_HOST_STATUS_H_
#define LONGDECODE_CUDA_HOST_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "base/errors.h"

namespace longdecode::cuda {

inline StatusCode status_code(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return StatusCode::kOutOfMemory;
  const bool no_device = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                         error == cudaErrorInvalidDevice;
  return no_device ? StatusCode::kUnavailable : StatusCode::kInternal;
}

// What is wrong with the driver, if the error is about it, else empty.
inline std::string driver_problem(cudaError_t error) {
  int driver = 0;
  if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess) {
    return {};
  }
  if (driver == 0) return "there is no NVIDIA driver (libcuda.so.1)";
  const auto text = [](int version) {  // "12.4" of 12040
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  };
  return fmt::format("the NVIDIA driver is for CUDA {}; this build needs one for {} or later",
                     text(driver), text(CUDART_VERSION));
}

// `what` names the call or kernel that failed.
inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status();
  if (const std::string problem = driver_problem(error); !problem.empty()) {
    return make_status(status_code(error), "{}: {}", what, problem);
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
