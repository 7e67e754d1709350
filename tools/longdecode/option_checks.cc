#include "option_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>

#include "base/errors.h"

namespace longdecode::tool {
namespace {

std::string empty_value(const std::string& type) {
  return fmt::format("the value is empty; allowed: {}", allowed_values(type));
}

}  // namespace

const char* allowed_values(const std::string& type) {
  if (type == "INT") return "an integer";
  if (type == "UINT") return "an integer, 0 or more";
  if (type == "FLOAT") return "a number";
  return "true or false";
}

std::string integer_problem(const std::string& text, const std::string& type) {
  if (text.empty()) return empty_value(type);
  const size_t first = text[0] == '-' || text[0] == '+' ? 1 : 0;
  if (text.size() > first + 1 && text[first] == '0') {
    return fmt::format("\"{}\" is not decimal; allowed: {} without leading zeros", text,
                       allowed_values(type));
  }
  int64_t value = 0;
  const auto result =
      std::from_chars(text.data() + (text[0] == '+' ? 1 : 0), text.data() + text.size(), value);
  if (result.ec != std::errc::result_out_of_range) return "";
  return fmt::format("{} is out of range; allowed: {} of 64 bits", text, allowed_values(type));
}

std::string float_problem(const std::string& text) {
  if (text.empty()) return empty_value("FLOAT");
  const double value = std::strtod(text.c_str(), nullptr);
  const bool named = text.find_first_of("0123456789") == std::string::npos;  // inf, nan
  if (named || std::fabs(value) <= std::numeric_limits<float>::max()) return "";
  return fmt::format("{} is out of range; allowed: numbers up to 3.4e38, inf", text);
}

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
