#include "cuda/kernels/mla_decode/select.h"

#include "base/status_macros.h"
#include "cuda/host/requirements.h"
#include "cuda/kernels/mla_decode/sm90/decode_kernel.h"

namespace longdecode::cuda {

Result<KernelChoice> select_mla_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  Requirements needs;
  needs.require_hopper(device);
  needs.require_decode(desc, device);
  needs.require_plain_pages(desc, device);
  needs.require_plain_scores(desc);
  // A run takes the orientation of its own rows; the name says that of the most.
  const bool is_transposed =
      int64_t{desc.max_query_len} * desc.num_q_heads <= mla_sm90::kMostTransposedRows;
  return needs.choose(is_transposed ? "cuda/mla_decode" : "cuda/mla_decode_rows", device);
}

Result<std::unique_ptr<DecodeKernel>> make_mla_decode(const DecodeDesc& desc,
                                                      const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN([[maybe_unused]] const KernelChoice choice, select_mla_decode(desc, device));
  return mla_sm90::make_decode_kernel(desc, device);
}

}  // namespace longdecode::cuda
