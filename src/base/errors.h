// Status constructors with fmt formatting. A message names the argument, its value and what is
// allowed: invalid_argument("page_size is {}; a two-plane cache allows 64 or 128", page_size).
#ifndef LONGDECODE_BASE_ERRORS_H_
#define LONGDECODE_BASE_ERRORS_H_

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "longdecode/status.h"

namespace longdecode {

template <typename... Args>
Status make_status(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

// The status, an error with `context` before its message.
inline Status in_context(std::string_view context, const Status& status) {
  if (status.ok()) return status;
  return make_status(status.code(), "{}{}", context, status.message());
}

template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

template <typename... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kUnsupported, format, std::forward<Args>(args)...);
}

template <typename... Args>
Status failed_precondition(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kFailedPrecondition, format, std::forward<Args>(args)...);
}

template <typename... Args>
Status out_of_memory(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kOutOfMemory, format, std::forward<Args>(args)...);
}

template <typename... Args>
Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kDataLoss, format, std::forward<Args>(args)...);
}

template <typename... Args>
Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kNotFound, format, std::forward<Args>(args)...);
}

}  // namespace longdecode

#endif  // LONGDECODE_BASE_ERRORS_H_
