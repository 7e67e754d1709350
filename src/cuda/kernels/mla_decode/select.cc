#include "cuda/kernels/mla_decode/select.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/kernels/mla_decode/sm90/decode_kernel.h"

namespace longdecode::cuda {

Result<KernelChoice> select_mla_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  std::vector<std::string> reasons;
  const auto require = [&](bool holds, std::string reason) {
    if (!holds) reasons.push_back(std::move(reason));
  };
  require(device.compute_capability == 90,
          fmt::format("compute_capability is {}; the kernel is for sm_90a (90)",
                      device.compute_capability));
  require(device.shared_memory_bytes >= 232448,
          fmt::format("shared_memory_bytes is {}; at least 232448 are needed",
                      device.shared_memory_bytes));
  require(device.num_sms >= 1, fmt::format("num_sms is {}; at least 1", device.num_sms));
  require(desc.method == Method::kDense, "method is ffd; dense is allowed");
  require(desc.format.keys == KeyEncoding::kPlain, "keys are two-plane; plain is allowed");
  require(desc.q_dtype == desc.format.dtype && desc.q_dtype != DType::kF32,
          fmt::format("q_dtype is {} and the cache's dtype is {}; both bf16 or both fp16",
                      static_cast<int>(desc.q_dtype), static_cast<int>(desc.format.dtype)));
  const int32_t page_size = desc.format.page_size;
  require(page_size == 16 || page_size == 32 || page_size == 64 || page_size == 128,
          fmt::format("page_size is {}; 16, 32, 64 or 128", page_size));
  require(desc.softmax_scale > 0.0f,
          fmt::format("softmax_scale is {}; it must be positive", desc.softmax_scale));
  require(desc.soft_cap == 0.0f, fmt::format("soft_cap is {}; 0 (off)", desc.soft_cap));
  require(desc.sliding_window == 0,
          fmt::format("sliding_window is {}; 0 (off)", desc.sliding_window));
  require(!desc.learned_sinks, "learned_sinks is set; it is not supported");
  require(desc.max_kv_len <= int64_t{1} << 30,
          fmt::format("max_kv_len is {}; at most 2^30", desc.max_kv_len));
  if (!reasons.empty()) {
    return unsupported("cuda/mla_decode does not serve this: {}", fmt::join(reasons, "; "));
  }
  return KernelChoice{"cuda/mla_decode", "sm_90a", 0};
}

Result<std::unique_ptr<DecodeKernel>> make_mla_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN([[maybe_unused]] const KernelChoice choice, select_mla_decode(desc, device));
  return mla_sm90::make_decode_kernel(desc, device);
}

}  // namespace longdecode::cuda
