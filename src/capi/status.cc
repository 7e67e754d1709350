#include "capi/status.h"

#include <cstdio>

namespace longdecode::capi {
namespace {

thread_local char last_error[1024] = "";

constexpr bool same(StatusCode code, ld_status_code c_code) {
  return static_cast<int>(code) == static_cast<int>(c_code);
}
static_assert(same(StatusCode::kOk, LD_OK));
static_assert(same(StatusCode::kInvalidArgument, LD_INVALID_ARGUMENT));
static_assert(same(StatusCode::kUnsupported, LD_UNSUPPORTED));
static_assert(same(StatusCode::kOutOfMemory, LD_OUT_OF_MEMORY));
static_assert(same(StatusCode::kFailedPrecondition, LD_FAILED_PRECONDITION));
static_assert(same(StatusCode::kUnavailable, LD_UNAVAILABLE));
static_assert(same(StatusCode::kDataLoss, LD_DATA_LOSS));
static_assert(same(StatusCode::kNotFound, LD_NOT_FOUND));
static_assert(same(StatusCode::kInternal, LD_INTERNAL));

}  // namespace

ld_status_code report(StatusCode code, const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return static_cast<ld_status_code>(code);
}

}  // namespace longdecode::capi

const char* ld_version(void) { return LONGDECODE_VERSION_STRING; }

const char* ld_last_error(void) { return longdecode::capi::last_error; }
