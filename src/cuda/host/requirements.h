// What a kernel family needs of a descriptor and a device, collected so that a refusal lists every
// reason.
#ifndef LONGDECODE_CUDA_HOST_REQUIREMENTS_H_
#define LONGDECODE_CUDA_HOST_REQUIREMENTS_H_

#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "cuda/host/architecture.h"
#include "longdecode/attention.h"

namespace longdecode::cuda {

class Requirements {
 public:
  void require(bool holds, std::string reason) {
    if (!holds) reasons_.push_back(std::move(reason));
  }

  // Of kernels for Hopper alone.
  void require_hopper(const DeviceInfo& device) {
    require(architecture_of(device) == Architecture::kSm90a,
            fmt::format("compute_capability is {}; the kernel is for sm_90a (90)",
                        device.compute_capability));
  }

  // Of kernels that sm_80 has for bf16 and one head_dim.
  void require_portable(const DecodeDesc& desc, const DeviceInfo& device) {
    const int32_t capability = device.compute_capability;
    const Architecture architecture = architecture_of(device);
    require(architecture != Architecture::kNone,
            fmt::format("compute_capability is {}; 80 or more", capability));
    if (architecture != Architecture::kSm80) return;
    require(desc.format.key_dim == 128,
            fmt::format("head_dim is {}; 128 where compute_capability is {}", desc.format.key_dim,
                        capability));
    require(desc.format.dtype == DType::kBF16,
            fmt::format("the cache's dtype is {}; bf16 where compute_capability is {}",
                        static_cast<int>(desc.format.dtype), capability));
    require(device.shared_memory_bytes >= kSm80SharedBytes,
            fmt::format("shared_memory_bytes is {}; at least {}", device.shared_memory_bytes,
                        kSm80SharedBytes));
  }

  // Of every decode kernel.
  void require_decode(const DecodeDesc& desc, const DeviceInfo& device) {
    require(device.num_sms >= 1, fmt::format("num_sms is {}; at least 1", device.num_sms));
    require(desc.q_dtype == desc.format.dtype && desc.q_dtype != DType::kF32,
            fmt::format("q_dtype is {} and the cache's dtype is {}; both bf16 or both fp16",
                        static_cast<int>(desc.q_dtype), static_cast<int>(desc.format.dtype)));
    require(desc.max_kv_len <= int64_t{1} << 30,
            fmt::format("max_kv_len is {}; at most 2^30", desc.max_kv_len));
  }

  // Of kernels that bring plain pages into all of an SM's shared memory.
  void require_plain_pages(const DecodeDesc& desc, const DeviceInfo& device) {
    require(architecture_of(device) != Architecture::kSm90a || device.shared_memory_bytes >= 232448,
            fmt::format("shared_memory_bytes is {}; at least 232448 are needed",
                        device.shared_memory_bytes));
    require(desc.format.keys == KeyEncoding::kPlain, "keys are two-plane; plain is allowed");
    const int32_t page_size = desc.format.page_size;
    require(page_size == 16 || page_size == 32 || page_size == 64 || page_size == 128,
            fmt::format("page_size is {}; 16, 32, 64 or 128", page_size));
  }

  // Of kernels without a soft cap, a sliding window and learned sinks.
  void require_plain_scores(const DecodeDesc& desc) {
    require(desc.softmax_scale > 0.0f,
            fmt::format("softmax_scale is {}; it must be positive", desc.softmax_scale));
    require(desc.soft_cap == 0.0f, fmt::format("soft_cap is {}; 0 (off)", desc.soft_cap));
    require(desc.sliding_window == 0,
            fmt::format("sliding_window is {}; 0 (off)", desc.sliding_window));
    require(!desc.learned_sinks, "learned_sinks is set; it is not supported");
  }

  // The choice of kernel `name` for the device, or kUnsupported with what does not hold.
  Result<KernelChoice> choose(const char* name, const DeviceInfo& device) const {
    if (reasons_.empty()) return KernelChoice{name, architecture_name(architecture_of(device)), 0};
    return unsupported("{} does not serve this: {}", name, fmt::join(reasons_, "; "));
  }

 private:
  std::vector<std::string> reasons_;
};

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_HOST_REQUIREMENTS_H_
