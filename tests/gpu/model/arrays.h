// Arrays of the tests of cuda/model: device memory with canaries, host values, fp64 sums.
#ifndef LONGDECODE_TESTS_GPU_MODEL_ARRAYS_H_
#define LONGDECODE_TESTS_GPU_MODEL_ARRAYS_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "base/float_convert.h"
#include "tests/gpu/device_problem.h"
#include "tests/gpu/mla_workload.h"

namespace longdecode::testing {

// An array on the device, poison (NaN) until it is set.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : memory_(std::make_unique<DeviceMemory>(count * kSize)) {}
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    set(values);
  }
  T* data() const { return memory_->data<T>(); }
  void set(const std::vector<T>& values) {
    memory_->copy_from(values.data(), static_cast<int64_t>(values.size()) * kSize);
  }
  // Waits for the device.
  std::vector<T> get() const {
    std::vector<T> values(static_cast<size_t>(memory_->num_bytes() / kSize));
    memory_->copy_to(values.data(), memory_->num_bytes());
    return values;
  }
  bool intact() const { return memory_->canaries_intact(); }

 private:
  static constexpr int64_t kSize = sizeof(T);
  std::unique_ptr<DeviceMemory> memory_;
};

inline DeviceInfo cuda_device() {
  auto device = detect_device(DeviceType::kCuda);
  gpu_test::check_status(device.status(), "detect_device");
  return *device;
}

inline std::vector<float> normal_floats(int64_t count, float deviation, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(rng);
  return values;
}

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = f32_to_bf16(values[i]);
  return bits;
}

inline std::vector<float> to_floats(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_f32(bits[i]);
  return values;
}

inline double silu(double x) { return x / (1.0 + std::exp(-x)); }

}  // namespace longdecode::testing

#endif  // LONGDECODE_TESTS_GPU_MODEL_ARRAYS_H_
