// Errors as values. Nothing in the library throws across its boundary, exits or prints.
#ifndef LONGDECODE_STATUS_H_
#define LONGDECODE_STATUS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace longdecode {

// The numeric values are part of the C ABI (`ld_status_code`).
enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // an argument is outside what the contract allows
  kUnsupported = 2,         // a valid request that no kernel of this build or device serves
  kOutOfMemory = 3,         // pages, sequence slots or memory ran out; state is unchanged
  kFailedPrecondition = 4,  // a call out of order (e.g. append before reserve)
  kUnavailable = 5,         // the device or driver is not there
  kDataLoss = 6,            // a file is truncated or damaged
  kNotFound = 7,            // a file or a named entry does not exist
  kInternal = 8,            // a bug in longdecode
};

// The outcome of a call. The message names the argument, its value and what is allowed.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit
  Result(Status status) : value_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit
    if (std::get<1>(value_).ok()) {
      std::get<1>(value_) = Status(StatusCode::kInternal, "Result built from an ok Status");
    }
  }

  bool ok() const { return value_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(value_); }

  // Only when ok().
  T& value() & { return std::get<0>(value_); }
  const T& value() const& { return std::get<0>(value_); }
  T&& value() && { return std::get<0>(std::move(value_)); }
  T* operator->() { return &std::get<0>(value_); }
  const T* operator->() const { return &std::get<0>(value_); }
  T& operator*() & { return std::get<0>(value_); }
  const T& operator*() const& { return std::get<0>(value_); }

 private:
  std::variant<T, Status> value_;
};

}  // namespace longdecode

#endif  // LONGDECODE_STATUS_H_
