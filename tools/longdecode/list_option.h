// An option whose value is a list: "0,1". CLI11's own delimiter drops what is empty between two
// commas; here that is an error.
#ifndef LONGDECODE_TOOLS_LIST_OPTION_H_
#define LONGDECODE_TOOLS_LIST_OPTION_H_

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>
#include <vector>

namespace longdecode::tool {

template <typename T>
bool parse_list(const std::string& text, std::vector<T>& values) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    T value{};
    if (item.empty() || !CLI::detail::lexical_cast(item, value)) return false;
    values.push_back(value);
    begin = end + 1;
  }
  return true;
}

// `values` holds the default. The option may be given as 1,2 or as 1 2.
template <typename T>
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<T>& values,
                             const std::string& description) {
  const char* kind = std::is_same_v<T, std::string> ? "words"
                     : std::is_integral_v<T>        ? "integers"
                                                    : "numbers";
  const auto parse = [&values, name, kind](const CLI::results_t& texts) {
    values.clear();
    for (const std::string& text : texts) {
      if (parse_list(text, values)) continue;
      throw CLI::ValidationError(
          fmt::format("{} is \"{}\"; allowed: {}, separated by commas", name, text, kind));
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
