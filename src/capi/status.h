// The error channel of the C ABI: codes returned, messages per thread, no exception out.
#ifndef LONGDECODE_CAPI_STATUS_H_
#define LONGDECODE_CAPI_STATUS_H_

#include <exception>
#include <new>

#include "base/errors.h"
#include "longdecode/c_api.h"
#include "longdecode/status.h"

namespace longdecode::capi {

// Remembers the message for ld_last_error of this thread. Does not allocate.
ld_status_code report(StatusCode code, const char* message) noexcept;

// Runs a function that returns a Status.
template <typename Function>
ld_status_code guarded(Function&& function) noexcept {
  try {
    const Status status = function();
    return report(status.code(), status.message().c_str());
  } catch (const std::bad_alloc&) {
    return report(StatusCode::kOutOfMemory, "host memory ran out");
  } catch (const std::exception& error) {
    return report(StatusCode::kInternal, error.what());
  } catch (...) {
    return report(StatusCode::kInternal, "unknown exception");
  }
}

template <typename T>
Status check_pointer(const char* name, const T* pointer) {
  if (pointer != nullptr) return {};
  return invalid_argument("{} is NULL; allowed: a pointer", name);
}

}  // namespace longdecode::capi

#endif  // LONGDECODE_CAPI_STATUS_H_
