#include "open_session.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "longdecode/attention.h"
#include "ops/backends.h"
#include "output.h"
#include "progress.h"

namespace longdecode::tool {
namespace {

// What the CPU may serve although the GPU does not.
bool is_of_the_device(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kUnsupported ||
         code == StatusCode::kOutOfMemory;
}

constexpr int64_t kMebibyte = 1 << 20;

Result<runner::Session> open_on_cuda(std::shared_ptr<const runner::Model> model,
                                     const SessionFlags& flags, runner::SessionOptions options,
                                     bool progress) {
  LD_ASSIGN_OR_RETURN(const DeviceInfo device, detect_device(DeviceType::kCuda));
  LD_RETURN_IF_ERROR(check_cuda_kv_type(flags));
  put_on_cuda(flags, device, options);
  const Progress bar("weights to the GPU", progress, "MiB");
  options.upload_progress = [bar](int64_t done, int64_t total) {
    bar((done + kMebibyte - 1) / kMebibyte, (total + kMebibyte - 1) / kMebibyte);
  };
  return runner::Session::create(std::move(model), options);
}

}  // namespace

Result<runner::Session> open_session(std::shared_ptr<const runner::Model> model,
                                     const SessionFlags& flags, Method method, int64_t context_len,
                                     bool progress) {
  LD_ASSIGN_OR_RETURN(const runner::SessionOptions options,
                      session_options(flags, method, context_len));
  if (flags.device == "cuda") return open_on_cuda(std::move(model), flags, options, progress);
  if (flags.device == "auto" && find_backend(DeviceType::kCuda).ok()) {
    Result<runner::Session> session = open_on_cuda(model, flags, options, progress);
    if (session.ok() || !is_of_the_device(session.status().code())) return session;
    print_note(fmt::format("on the CPU, because {}", session.status().message()));
  }
  return runner::Session::create(std::move(model), options);
}

}  // namespace longdecode::tool
