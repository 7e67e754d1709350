#include "cuda/kernels/ffd_decode/select.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/kernels/ffd_decode/decode_kernel.h"

namespace longdecode::cuda {

Result<KernelChoice> select_ffd_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  std::vector<std::string> reasons;
  const auto require = [&](bool holds, std::string reason) {
    if (!holds) reasons.push_back(std::move(reason));
  };
  require(device.compute_capability == 90,
          fmt::format("compute_capability is {}; the kernel is for sm_90a (90)",
                      device.compute_capability));
  require(device.num_sms >= 1, fmt::format("num_sms is {}; at least 1", device.num_sms));
  require(desc.q_dtype == desc.format.dtype && desc.q_dtype != DType::kF32,
          fmt::format("q_dtype is {} and the cache's dtype is {}; both bf16 or both fp16",
                      static_cast<int>(desc.q_dtype), static_cast<int>(desc.format.dtype)));
  require(desc.soft_cap == 0.0f, fmt::format("soft_cap is {}; 0 (off)", desc.soft_cap));
  require(desc.sliding_window == 0,
          fmt::format("sliding_window is {}; 0 (off)", desc.sliding_window));
  require(!desc.learned_sinks, "learned_sinks is set; it is not supported");
  require(desc.softmax_scale > 0.0f,
          fmt::format("softmax_scale is {}; it must be positive", desc.softmax_scale));
  require(desc.max_kv_len <= int64_t{1} << 30,
          fmt::format("max_kv_len is {}; at most 2^30", desc.max_kv_len));
  const int64_t rows = int64_t{desc.max_query_len} * desc.num_q_heads;
  require(rows * desc.max_batch <= int64_t{1} << 30,
          fmt::format("max_batch {} x max_query_len {} x num_q_heads {}; at most 2^30 together",
                      desc.max_batch, desc.max_query_len, desc.num_q_heads));
  const ffd::RunPlan plan = ffd::plan_run(desc, device, desc.max_query_len);
  require(plan.instance >= 0,
          fmt::format("key_dim is {}; 64, 96, 128 or 256", desc.format.key_dim));
  require(
      plan.instance < 0 || plan.num_stages >= 1,
      fmt::format("shared_memory_bytes is {}; {} rows of head_dim {} with pages of {} need more",
                  device.shared_memory_bytes, rows / desc.format.num_kv_heads, desc.format.key_dim,
                  desc.format.page_size));
  if (!reasons.empty()) {
    return unsupported("cuda/ffd_decode does not serve this: {}", fmt::join(reasons, "; "));
  }
  return KernelChoice{"cuda/ffd_decode", "sm_90a", 0};
}

Result<std::unique_ptr<DecodeKernel>> make_ffd_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN([[maybe_unused]] const KernelChoice choice, select_ffd_decode(desc, device));
  return ffd::make_decode_kernel(desc, device);
}

}  // namespace longdecode::cuda
