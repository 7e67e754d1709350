#include "cuda/kernels/gqa_decode/select.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"
#include "cuda/kernels/gqa_decode/decode_kernel.h"

namespace longdecode::cuda {

Result<KernelChoice> select_gqa_decode(const DecodeDesc& desc, const DeviceInfo& device) {
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
  const KvFormat& format = desc.format;
  require(format.keys == KeyEncoding::kPlain, "keys are two-plane; plain is allowed");
  require(desc.q_dtype == format.dtype && desc.q_dtype != DType::kF32,
          fmt::format("q_dtype is {} and the cache's dtype is {}; both bf16 or both fp16",
                      static_cast<int>(desc.q_dtype), static_cast<int>(format.dtype)));
  const int32_t instance = gqa::instance_for(format.key_dim, false);
  require(instance >= 0, fmt::format("head_dim is {}; 64, 96, 128 or 256", format.key_dim));
  const int32_t page_size = format.page_size;
  require(page_size == 16 || page_size == 32 || page_size == 64 || page_size == 128,
          fmt::format("page_size is {}; 16, 32, 64 or 128", page_size));
  require(desc.max_kv_len <= int64_t{1} << 30,
          fmt::format("max_kv_len is {}; at most 2^30", desc.max_kv_len));
  if (instance >= 0) {
    const int64_t tiles = ceil_div(desc.max_kv_len, gqa::kInstances[instance].tokens());
    const int64_t pairs = int64_t{desc.max_batch} * format.num_kv_heads;
    require(pairs <= INT32_MAX / tiles,
            fmt::format("max_batch {} x num_kv_heads {} x {} tiles of max_kv_len; at most 2^31 - 1",
                        desc.max_batch, format.num_kv_heads, tiles));
  }
  if (!reasons.empty()) {
    return unsupported("cuda/gqa_decode does not serve this: {}", fmt::join(reasons, "; "));
  }
  return KernelChoice{"cuda/gqa_decode", "sm_90a", 0};
}

Result<std::unique_ptr<DecodeKernel>> make_gqa_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN([[maybe_unused]] const KernelChoice choice, select_gqa_decode(desc, device));
  return gqa::make_decode_kernel(desc, device);
}

}  // namespace longdecode::cuda
