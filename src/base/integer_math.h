// Rounding divisions of sizes and counts. Values are 0 or more, divisors 1 or more.
#ifndef LONGDECODE_BASE_INTEGER_MATH_H_
#define LONGDECODE_BASE_INTEGER_MATH_H_

#include <cstdint>

namespace longdecode {

// Does not overflow for any value, unlike (value + divisor - 1) / divisor.
constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace longdecode

#endif  // LONGDECODE_BASE_INTEGER_MATH_H_
