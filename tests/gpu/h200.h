// Facts of an H200, for tests of selection, which need none.
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

// The reasons why no kernel serves desc on the device; "served" when one does.
inline std::string refusal(const DecodeDesc& desc, const DeviceInfo& device = h200()) {
  const Result<KernelChoice> choice = select_kernel(desc, device);
  return choice.ok() ? "served" : choice.status().message();
}

}  // namespace longdecode

#endif  // LONGDECODE_TESTS_GPU_H200_H_
