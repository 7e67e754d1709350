// What a kernel family needs of a descriptor and a device, collected so that a refusal lists every
// reason.
#ifndef LONGDECODE_CUDA_HOST_REQUIREMENTS_H_
#define LONGDECODE_CUDA_HOST_REQUIREMENTS_H_

#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "base/dtype_name.h"
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
    require(
        architecture_of(device) == Architecture::kSm90a,
        fmt::format("compute_capability is {}; allowed: 90 (sm_90a)", device.compute_capability));
  }

  // Of kernels that sm_80 has for bf16 and one head_dim.
  void require_portable(const DecodeDesc& desc, const DeviceInfo& device) {
    const int32_t capability = device.compute_capability;
    const Architecture architecture = architecture_of(device);
    require(architecture != Architecture::kNone,
            fmt::format("compute_capability is {}; allowed: 80 or more", capability));
    if (architecture != Architecture::kSm80) return;
    require(desc.format.key_dim == 128,
            fmt::format("format.key_dim is {}; allowed where compute_capability is {}: 128",
                        desc.format.key_dim, capability));
    require(desc.format.dtype == DType::kBF16,
            fmt::format("format.dtype is {}; allowed where compute_capability is {}: bf16",
                        dtype_name(desc.format.dtype), capability));
    require(device.shared_memory_bytes >= kSm80SharedBytes,
            fmt::format("shared_memory_bytes is {}; allowed: {} or more",
                        device.shared_memory_bytes, kSm80SharedBytes));
  }

  // Of every decode kernel.
  void require_decode(const DecodeDesc& desc, const DeviceInfo& device) {
    require(device.num_sms >= 1, fmt::format("num_sms is {}; allowed: 1 or more", device.num_sms));
    require(desc.q_dtype == desc.format.dtype && desc.q_dtype != DType::kF32,
            fmt::format("q_dtype is {} and format.dtype {}; allowed: both bf16 or both f16",
                        dtype_name(desc.q_dtype), dtype_name(desc.format.dtype)));
    require(desc.max_kv_len <= int64_t{1} << 30,
            fmt::format("max_kv_len is {}; allowed: 1 to 2^30", desc.max_kv_len));
  }

  // Of kernels that bring plain pages into all of an SM's shared memory.
  void require_plain_pages(const DecodeDesc& desc, const DeviceInfo& device) {
    require(architecture_of(device) != Architecture::kSm90a || device.shared_memory_bytes >= 232448,
            fmt::format("shared_memory_bytes is {}; allowed: 232448 or more",
                        device.shared_memory_bytes));
    require(desc.format.keys == KeyEncoding::kPlain, "format.keys is two-plane; allowed: plain");
    require(desc.method == Method::kDense,
            "method is ffd with format.keys plain; allowed: dense (ffd reads code planes)");
    const int32_t page_size = desc.format.page_size;
    require(page_size == 16 || page_size == 32 || page_size == 64 || page_size == 128,
            fmt::format("format.page_size is {}; allowed: 16, 32, 64 or 128", page_size));
  }

  // Of kernels without a soft cap, a sliding window and learned sinks.
  void require_plain_scores(const DecodeDesc& desc) {
    require(desc.softmax_scale > 0.0f,
            fmt::format("softmax_scale is {}; allowed: above 0", desc.softmax_scale));
    require(desc.soft_cap == 0.0f, fmt::format("soft_cap is {}; allowed: 0 (off)", desc.soft_cap));
    require(desc.sliding_window == 0,
            fmt::format("sliding_window is {}; allowed: 0 (off)", desc.sliding_window));
    require(!desc.learned_sinks, "learned_sinks is set; allowed: not set");
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
