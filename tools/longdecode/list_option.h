// An option whose value is a list: "0,1". CLI11's own delimiter drops what is empty between two
// commas; here that is an error.
#ifndef LONGDECODE_TOOLS_LIST_OPTION_H_
#define LONGDECODE_TOOLS_LIST_OPTION_H_

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "option_checks.h"

namespace longdecode::tool {

// What is wrong with the text of a number; "" for words, which are left to the command: it knows
// those that are allowed.
template <typename T>
std::string value_problem(const std::string& text) {
  if constexpr (std::is_integral_v<T>) return integer_problem(text, 8 * int{sizeof(T)});
  if constexpr (std::is_floating_point_v<T>) return float_problem(text);
  return "";
}

// Appends the values of "0,1", or says what is wrong with them.
template <typename T>
std::string parse_list(const std::string& text, const char* kind, std::vector<T>& values) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::string problem = item.empty() ? "" : value_problem<T>(item);
    if (!problem.empty()) return ": " + problem;
    T value{};
    if (!CLI::detail::lexical_cast(item, value)) {
      return fmt::format(" is \"{}\"; allowed: {}, separated by commas", shown(text), kind);
    }
    values.push_back(value);
    begin = end + 1;
  }
  return "";
}

// `values` holds the default. The option may be given as 1,2 or as 1 2.
template <typename T>
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<T>& values,
                             const std::string& description) {
  const std::string long_name = name.substr(name.rfind("--"));
  const auto parse = [&values, long_name](const CLI::results_t& texts) {
    values.clear();
    for (const std::string& text : texts) {
      const std::string problem =
          parse_list(text, std::is_integral_v<T> ? "integers" : "numbers", values);
      if (!problem.empty()) throw CLI::ValidationError(long_name + problem);
    }
    return true;
  };
  const auto show = [&values] { return CLI::detail::join(values, ","); };
  return command.add_option(name, parse, description, false, show)
      ->type_name(CLI::detail::type_name<T>())
      ->type_size(1)
      ->expected(1, CLI::detail::expected_max_vector_size);
}

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_LIST_OPTION_H_
