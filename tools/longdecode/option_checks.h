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

// What an option of the type takes: INT, FLOAT and "" (a flag) as CLI11 names them, FILE; else the
// name of the type.
std::string allowed_values(const std::string& type);

// A value for a message: cut where it is long.
std::string shown(const std::string& value);

// "" where the conversion of the text to a number (an integer of num_bits; FLOAT) gives the value
// that is written there, or is refused as no number; else what is wrong.
std::string integer_problem(const std::string& text, int num_bits);
std::string float_problem(const std::string& text);

Status check_choice(const char* flag, const std::string& value,
                    const std::vector<std::string>& allowed);
Status check_within(const char* flag, int64_t value, int64_t min, int64_t max);
Status check_non_negative(const char* flag, float value, bool infinity_allowed);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_OPTION_CHECKS_H_
