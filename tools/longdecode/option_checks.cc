#include "option_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
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

std::string allowed_values(const std::string& type) {
  if (type == "INT") return "an integer";
  if (type == "FLOAT") return "a number";
  if (type == "FILE") return "a file name";
  return type.empty() ? "true or false" : type;
}

std::string shown(const std::string& value) {
  constexpr size_t kMost = 100;
  if (value.size() <= kMost) return value;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0) == 0x80) --end;  // UTF-8
  return value.substr(0, end) + "...";
}

std::string integer_problem(const std::string& text, int num_bits) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  while (begin < end && std::isspace(static_cast<unsigned char>(*begin)) != 0) ++begin;
  if (begin == end) return empty_value("INT");
  if (*begin == '+') ++begin;
  const char* first_digit = begin + (begin < end && *begin == '-' ? 1 : 0);
  const bool has_more = end - first_digit > 1;
  if (has_more && *first_digit == '0' && std::isalnum(static_cast<unsigned char>(first_digit[1]))) {
    return fmt::format("\"{}\" is not decimal; allowed: an integer without leading zeros",
                       shown(text));
  }
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  const int64_t max = std::numeric_limits<int64_t>::max() >> (64 - num_bits);
  const bool fits = error != std::errc::result_out_of_range && value <= max && value >= -max - 1;
  if (fits || stop != end) return "";
  return fmt::format("{} is out of range; allowed: an integer of {} bits", shown(text), num_bits);
}

std::string float_problem(const std::string& text) {
  if (text.empty()) return empty_value("FLOAT");
  const double value = std::strtod(text.c_str(), nullptr);
  if (text.find_first_of("xX") != std::string::npos) {
    return fmt::format("\"{}\" is not decimal; allowed: a number", shown(text));
  }
  const bool named = text.find_first_of("0123456789") == std::string::npos;  // inf, nan
  const bool vanishes =
      static_cast<float>(value) == 0.0f &&
      text.substr(0, text.find_first_of("eE")).find_first_of("123456789") != std::string::npos;
  if (named || (std::fabs(value) <= std::numeric_limits<float>::max() && !vanishes)) return "";
  return fmt::format("{} is out of range; allowed: 0, numbers from 1.5e-45 up to 3.4e38, inf",
                     shown(text));
}

Status check_choice(const char* flag, const std::string& value,
                    const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return {};
  return invalid_argument("{} is \"{}\"; allowed: {}", flag, shown(value),
                          fmt::join(allowed, ", "));
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
