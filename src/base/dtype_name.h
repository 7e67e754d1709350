// The names of dtypes in messages, tables and JSON.
#ifndef LONGDECODE_BASE_DTYPE_NAME_H_
#define LONGDECODE_BASE_DTYPE_NAME_H_

#include "longdecode/types.h"

namespace longdecode {

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "unknown";
}

}  // namespace longdecode

#endif  // LONGDECODE_BASE_DTYPE_NAME_H_
