#include "cuda/kernels/ffd_decode/select.h"

#include "base/status_macros.h"
#include "cuda/host/requirements.h"
#include "cuda/kernels/ffd_decode/decode_kernel.h"

namespace longdecode::cuda {

Result<KernelChoice> select_ffd_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  Requirements needs;
  needs.require_portable(desc, device);
  needs.require_decode(desc, device);
  needs.require_plain_scores(desc);
  const int64_t rows = int64_t{desc.max_query_len} * desc.num_q_heads;
  needs.require(
      rows * desc.max_batch <= int64_t{1} << 30,
      fmt::format(
          "max_batch {} x max_query_len {} x num_q_heads {}; allowed: at most 2^30 together",
          desc.max_batch, desc.max_query_len, desc.num_q_heads));
  const ffd::RunPlan plan = ffd::plan_run(desc, device, desc.max_query_len);
  needs.require(
      plan.instance >= 0 || architecture_of(device) == Architecture::kSm80,
      fmt::format("format.key_dim is {}; allowed: 64, 96, 128 or 256", desc.format.key_dim));
  needs.require(
      plan.instance < 0 || plan.num_stages >= 1,
      fmt::format(
          "shared_memory_bytes is {}; {} query rows a kv head at key_dim {} and page_size {} "
          "need {}; allowed: fewer rows or smaller pages",
          device.shared_memory_bytes, rows / desc.format.num_kv_heads, desc.format.key_dim,
          desc.format.page_size, plan.shared_bytes));
  return needs.choose("cuda/ffd_decode", device);
}

Result<std::unique_ptr<DecodeKernel>> make_ffd_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN([[maybe_unused]] const KernelChoice choice, select_ffd_decode(desc, device));
  return ffd::make_decode_kernel(desc, device);
}

}  // namespace longdecode::cuda
