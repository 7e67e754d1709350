// Checks of flag values. A message names the flag, its value and what is allowed.
#ifndef LONGDECODE_TOOLS_OPTION_CHECKS_H_
#define LONGDECODE_TOOLS_OPTION_CHECKS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::tool {

inline constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

Status check_choice(const char* flag, const std::string& value,
                    const std::vector<std::string>& allowed);
Status check_within(const char* flag, int64_t value, int64_t min, int64_t max);
Status check_non_negative(const char* flag, float value, bool infinity_allowed);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_OPTION_CHECKS_H_
