// Owned device memory.
#ifndef LONGDECODE_CACHE_DEVICE_BUFFER_H_
#define LONGDECODE_CACHE_DEVICE_BUFFER_H_

#include <cstdint>
#include <utility>

#include "base/backend.h"
#include "base/status_macros.h"

namespace longdecode {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Result<DeviceBuffer> create(int64_t num_bytes, const Backend& backend,
                                     const DeviceInfo& device) {
    LD_ASSIGN_OR_RETURN(void* const memory, backend.allocate(num_bytes, device));
    DeviceBuffer buffer;
    buffer.data_ = static_cast<uint8_t*>(memory);
    buffer.backend_ = &backend;
    buffer.device_ = device;
    return buffer;
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        backend_(other.backend_),
        device_(other.device_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(backend_, other.backend_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) backend_->deallocate(data_, device_);
  }

  uint8_t* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  const Backend* backend_ = nullptr;
  DeviceInfo device_;
};

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_DEVICE_BUFFER_H_
