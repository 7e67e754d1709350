// Sized structs of the C ABI: reading what an older or newer caller passes, and writing results.
#ifndef LONGDECODE_CAPI_STRUCTS_H_
#define LONGDECODE_CAPI_STRUCTS_H_

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "capi/status.h"

namespace longdecode::capi {

// No header to come has a larger struct: this is a size that was never set, and all of its bytes
// would be read, or written in an output.
inline constexpr size_t kMaxStructBytes = 4096;

// struct_size of a caller's struct, which may be shorter than ours.
template <typename T>
Status read_size(const char* name, const T* from, size_t* size) {
  LD_RETURN_IF_ERROR(check_pointer(name, from));
  std::memcpy(size, from, sizeof *size);
  if (*size >= sizeof(size_t) && *size <= kMaxStructBytes) return {};
  return invalid_argument("{}.struct_size is {}; allowed: sizeof the struct, here {}, at most {}",
                          name, *size, sizeof(T), kMaxStructBytes);
}

// *to holds the defaults; the fields that the caller knows replace them.
template <typename T>
Status read_struct(const char* name, const T* from, T* to) {
  size_t size = 0;
  LD_RETURN_IF_ERROR(read_size(name, from, &size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  if (size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return invalid_argument(
        "{}.struct_size is {}, with fields set that this library (sizeof {}) does not know", name,
        size, sizeof(T));
  }
  std::memcpy(to, from, std::min(size, sizeof(T)));
  to->struct_size = sizeof(T);
  return {};
}

// Checks an output struct before the work is done.
template <typename T>
Status check_output(const char* name, const T* to) {
  size_t size = 0;
  return read_size(name, to, &size);
}

// Writes the fields that the caller knows; fields that only the caller knows become zero.
template <typename T>
void write_struct(const T& from, T* to) {
  size_t size = 0;
  std::memcpy(&size, to, sizeof size);
  auto* bytes = reinterpret_cast<unsigned char*>(to);
  const size_t known = std::min(size, sizeof(T));
  std::memcpy(bytes + sizeof size, reinterpret_cast<const unsigned char*>(&from) + sizeof size,
              known - sizeof size);
  std::fill(bytes + known, bytes + size, static_cast<unsigned char>(0));
}

}  // namespace longdecode::capi

#endif  // LONGDECODE_CAPI_STRUCTS_H_
