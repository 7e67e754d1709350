#include "ops/backends.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cpu/cpu_backend.h"
#include "ops/validate.h"
#ifdef LONGDECODE_HAS_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace longdecode {
namespace {

LengthAccess length_access(const Backend& backend) {
  return backend.host_readable() ? LengthAccess::kHost : LengthAccess::kDeviceOnly;
}

}  // namespace

Result<const Backend*> find_backend(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return &cpu::backend();
    case DeviceType::kCuda:
#ifdef LONGDECODE_HAS_CUDA
      return &cuda::backend();
#else
      return make_status(StatusCode::kUnavailable,
                         "no CUDA device: this build has no CUDA backend; device.type is {}, "
                         "allowed: {} (cpu)",
                         static_cast<int32_t>(type), static_cast<int32_t>(DeviceType::kCpu));
#endif
  }
  return make_status(StatusCode::kUnavailable, "device.type is {}; allowed: 0 (cpu), 1 (cuda)",
                     static_cast<int32_t>(type));
}

Result<DeviceInfo> detect_device(DeviceType type, int32_t device_idx) {
  LD_ASSIGN_OR_RETURN(const Backend* backend, find_backend(type));
  return backend->detect(device_idx);
}

Status append_kv(const AppendArgs& args, const DeviceInfo& device, StreamHandle stream) {
  LD_ASSIGN_OR_RETURN(const Backend* backend, find_backend(device.type));
  LD_RETURN_IF_ERROR(validate(device));
  LD_RETURN_IF_ERROR(validate(args, length_access(*backend)));
  if (args.batch.batch == 0 || args.k.shape[1] == 0) return {};
  return backend->append(args, device, stream);
}

Status prefill_attention(const PrefillArgs& args, const DeviceInfo& device, StreamHandle stream) {
  LD_ASSIGN_OR_RETURN(const Backend* backend, find_backend(device.type));
  LD_RETURN_IF_ERROR(validate(device));
  LD_RETURN_IF_ERROR(validate(args, length_access(*backend)));
  if (args.q.shape[0] == 0) return {};
  return backend->prefill(args, device, stream);
}

Status merge_partials(const MergeArgs& args, const DeviceInfo& device, StreamHandle stream) {
  LD_ASSIGN_OR_RETURN(const Backend* backend, find_backend(device.type));
  LD_RETURN_IF_ERROR(validate(device));
  LD_RETURN_IF_ERROR(validate(args));
  if (args.num_rows == 0) return {};
  return backend->merge(args, device, stream);
}

}  // namespace longdecode
