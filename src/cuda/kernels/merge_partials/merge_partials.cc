#include "cuda/kernels/merge_partials/merge_partials.h"

#include "base/status_macros.h"
#include "cuda/host/status.h"
#include "cuda/kernels/merge_partials/kernel.h"

namespace longdecode::cuda {

Status merge_partials(const MergeArgs& args, const DeviceInfo& device, StreamHandle stream) {
  if (args.num_rows == 0) return Status();
  const DeviceGuard guard(device.device_idx);
  LD_RETURN_IF_ERROR(guard.status());
  return cuda_status(launch_merge_partials(args, static_cast<cudaStream_t>(stream)),
                     "launch of merge_partials");
}

}  // namespace longdecode::cuda
