#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "longdecode/attention.h"
#include "ops/backends.h"
#include "ops/validate.h"

namespace longdecode {
namespace {

// A descriptor that has passed validation, its defaults filled in, and the backend that serves it.
struct Request {
  DecodeDesc desc;
  const Backend* backend = nullptr;
  KernelChoice kernel;
};

Result<Request> resolve(const DecodeDesc& desc, const DeviceInfo& device) {
  Request request;
  LD_RETURN_IF_ERROR(validate(desc));
  LD_RETURN_IF_ERROR(validate(device));
  request.desc = desc;
  request.desc.softmax_scale = resolved_softmax_scale(desc);
  // No sequence is longer, and positions minus a window of 2^63 - 1 would overflow.
  request.desc.sliding_window = std::min(desc.sliding_window, kMaxKvLen);
  LD_ASSIGN_OR_RETURN(request.backend, find_backend(device.type));
  LD_ASSIGN_OR_RETURN(request.kernel, request.backend->select(request.desc, device));
  return request;
}

constexpr int64_t kWorkspaceAlignment = 16;

Status check_not_moved(const void* impl) {
  if (impl != nullptr) return {};
  return failed_precondition("the plan was moved from; use the object it was moved to");
}

}  // namespace

struct DecodePlan::Impl {
  Request request;
  std::unique_ptr<DecodeKernel> kernel;
  int64_t workspace_bytes = 0;
  void* workspace = nullptr;
  bool is_initialized = false;
};

Result<KernelChoice> select_kernel(const DecodeDesc& desc, const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN(Request request, resolve(desc, device));
  return std::move(request.kernel);
}

DecodePlan::DecodePlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodePlan::DecodePlan(DecodePlan&&) noexcept = default;
DecodePlan& DecodePlan::operator=(DecodePlan&&) noexcept = default;
DecodePlan::~DecodePlan() = default;

Result<DecodePlan> DecodePlan::create(const DecodeDesc& desc, const DeviceInfo& device) {
  auto impl = std::make_unique<Impl>();
  LD_ASSIGN_OR_RETURN(impl->request, resolve(desc, device));
  const Request& request = impl->request;
  LD_ASSIGN_OR_RETURN(impl->kernel, request.backend->make_decode(request.desc, device));
  impl->workspace_bytes = impl->kernel->workspace_bytes();
  return DecodePlan(std::move(impl));
}

const DecodeDesc& DecodePlan::desc() const {
  static const DecodeDesc moved_from;
  return impl_ != nullptr ? impl_->request.desc : moved_from;
}

const KernelChoice& DecodePlan::kernel() const {
  static const KernelChoice moved_from;
  return impl_ != nullptr ? impl_->request.kernel : moved_from;
}

int64_t DecodePlan::workspace_bytes() const {
  return impl_ != nullptr ? impl_->workspace_bytes : 0;
}

Status DecodePlan::init(void* workspace, StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  if (impl_->workspace_bytes > 0 &&
      (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0)) {
    return invalid_argument("workspace is {}; allowed: a {}-byte aligned pointer to {} bytes",
                            workspace, kWorkspaceAlignment, impl_->workspace_bytes);
  }
  LD_RETURN_IF_ERROR(impl_->kernel->init(workspace, stream));
  impl_->workspace = workspace;
  impl_->is_initialized = true;
  return {};
}

Status DecodePlan::run(const DecodeArgs& args, StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_not_moved(impl_.get()));
  if (!impl_->is_initialized) return failed_precondition("run before init of the plan");
  const LengthAccess access =
      impl_->request.backend->host_readable() ? LengthAccess::kHost : LengthAccess::kDeviceOnly;
  LD_RETURN_IF_ERROR(validate(args, impl_->request.desc, access));
  if (args.batch.batch == 0) return {};
  return impl_->kernel->run(args, impl_->workspace, stream);
}

}  // namespace longdecode
