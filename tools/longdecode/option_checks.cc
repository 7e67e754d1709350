#include "option_checks.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace longdecode::tool {

Status check_choice(const char* flag, const std::string& value,
                    const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return {};
  return invalid_argument("{} is \"{}\"; allowed: {}", flag, value, fmt::join(allowed, ", "));
}

Status check_within(const char* flag, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return {};
  return invalid_argument("{} is {}; it must be within {} and {}", flag, value, min, max);
}

Status check_non_negative(const char* flag, float value, bool infinity_allowed) {
  if (value >= 0.0f && (infinity_allowed || !std::isinf(value))) return {};
  return invalid_argument("{} is {}; it must be >= 0{}", flag, value,
                          infinity_allowed ? " (inf keeps every token)" : " and finite");
}

}  // namespace longdecode::tool
