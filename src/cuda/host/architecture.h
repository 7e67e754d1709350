// Which kernels a GPU runs.
#ifndef LONGDECODE_CUDA_HOST_ARCHITECTURE_H_
#define LONGDECODE_CUDA_HOST_ARCHITECTURE_H_

#include <cstdint>

#include "longdecode/types.h"

namespace longdecode::cuda {

enum class Architecture {
  kNone,
  kSm80,   // compiled for sm_80, which 8.6 and 8.9 run too, and as PTX for what came after Hopper
  kSm90a,  // Hopper's own
};

// By compute_capability alone, so that a DeviceInfo with a smaller one than the GPU has runs the
// kernels for that one (tests do).
inline Architecture architecture_of(const DeviceInfo& device) {
  if (device.compute_capability == 90) return Architecture::kSm90a;
  return device.compute_capability >= 80 ? Architecture::kSm80 : Architecture::kNone;
}

inline const char* architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kSm80:
      return "sm_80";
    case Architecture::kSm90a:
      return "sm_90a";
    case Architecture::kNone:
      break;
  }
  return "none";
}

// Shared memory of a CTA that every GPU of sm_80's kernels has (8.6, 8.9, 12.0).
inline constexpr int64_t kSm80SharedBytes = 99 * 1024;

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_HOST_ARCHITECTURE_H_
