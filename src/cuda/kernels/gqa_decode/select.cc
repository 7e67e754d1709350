#include "cuda/kernels/gqa_decode/select.h"

#include "base/integer_math.h"
#include "base/status_macros.h"
#include "cuda/host/requirements.h"
#include "cuda/kernels/gqa_decode/decode_kernel.h"

namespace longdecode::cuda {

Result<KernelChoice> select_gqa_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  Requirements needs;
  needs.require_portable(desc, device);
  needs.require_decode(desc, device);
  needs.require_plain_pages(desc, device);
  const KvFormat& format = desc.format;
  const int32_t instance = gqa::instance_for(desc, device);
  needs.require(instance >= 0 || architecture_of(device) == Architecture::kSm80,
                fmt::format("format.key_dim is {}; allowed: 64, 96, 128 or 256", format.key_dim));
  if (instance >= 0) {
    const int64_t tiles = ceil_div(desc.max_kv_len, gqa::kInstances[instance].tokens());
    const int64_t pairs = int64_t{desc.max_batch} * format.num_kv_heads;
    needs.require(
        pairs <= INT32_MAX / tiles,
        fmt::format(
            "max_batch {} x num_kv_heads {} x {} tiles of max_kv_len; allowed: at most 2^31 - 1",
            desc.max_batch, format.num_kv_heads, tiles));
  }
  return needs.choose("cuda/gqa_decode", device);
}

Result<std::unique_ptr<DecodeKernel>> make_gqa_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN([[maybe_unused]] const KernelChoice choice, select_gqa_decode(desc, device));
  return gqa::make_decode_kernel(desc, device);
}

}  // namespace longdecode::cuda
