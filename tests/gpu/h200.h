// Facts of GPUs, for tests of selection, which need none.
#ifndef LONGDECODE_TESTS_GPU_H200_H_
#define LONGDECODE_TESTS_GPU_H200_H_

#include <string>

#include "longdecode/attention.h"

namespace longdecode {

inline DeviceInfo h200() {
  DeviceInfo device;
  device.type = DeviceType::kCuda;
  device.compute_capability = 90;
  device.num_sms = 132;
  device.shared_memory_bytes = 232448;
  return device;
}

inline DeviceInfo rtx4090() {
  DeviceInfo device;
  device.type = DeviceType::kCuda;
  device.compute_capability = 89;
  device.num_sms = 128;
  device.shared_memory_bytes = 101376;
  return device;
}

// A GPU that runs the kernels of sm_80 instead of its own, with the shared memory of those that
// have the least.
inline DeviceInfo as_sm80(DeviceInfo device) {
  device.compute_capability = rtx4090().compute_capability;
  device.shared_memory_bytes = rtx4090().shared_memory_bytes;
  return device;
}

// The reasons why no kernel serves desc on the device; "served" when one does.
inline std::string refusal(const DecodeDesc& desc, const DeviceInfo& device = h200()) {
  const Result<KernelChoice> choice = select_kernel(desc, device);
  return choice.ok() ? "served" : choice.status().message();
}

}  // namespace longdecode

#endif  // LONGDECODE_TESTS_GPU_H200_H_
