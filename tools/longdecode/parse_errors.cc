#include "parse_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>
#include <vector>

#include "option_checks.h"

namespace longdecode::tool {
namespace {

// The command that was parsed, as deep as it was named.
const CLI::App& chosen_command(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : chosen_command(*parsed[0]);
}

// The command that the first words name, and how many arguments stand before its own.
std::pair<const CLI::App*, int> named_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = &app;
  int depth = 1;
  for (; depth < argc; ++depth) {
    const std::vector<const CLI::App*> commands = command->get_subcommands({});
    const auto named = [&](const CLI::App* next) { return next->get_name() == argv[depth]; };
    const auto found = std::find_if(commands.begin(), commands.end(), named);
    if (found == commands.end()) break;
    command = *found;
  }
  return {command, depth};
}

// CLI11's own message does not name what was given or what there is.
std::string missing_command(const CLI::App& app, int argc, char** argv) {
  const auto [parent, depth] = named_command(app, argc, argv);
  const std::vector<const CLI::App*> commands = parent->get_subcommands({});
  std::string allowed;
  for (const CLI::App* command : commands) {
    allowed += (allowed.empty() ? "" : ", ") + command->get_name();
  }
  const bool has_word = depth < argc && argv[depth][0] != '-';
  return fmt::format("{}{}; allowed: {} (see longdecode --help)",
                     has_word ? "unknown command " : "",
                     has_word ? shown(argv[depth]) : "no command given", allowed);
}

// "Could not convert: --temp = abc" does not say what would do.
std::string bad_conversion(const CLI::App& command, const std::string& message) {
  constexpr std::string_view kPrefix = "Could not convert: ";
  const size_t equals = message.find(" = ");
  if (message.rfind(kPrefix, 0) != 0 || equals == std::string::npos) return message;
  const std::string name = message.substr(kPrefix.size(), equals - kPrefix.size());
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr) return message;
  const std::string text = message.substr(equals + 3);
  const std::string type = option->get_type_name();
  // check_option_texts has let 64 bits pass.
  const std::string problem = type == "INT" ? integer_problem(text, 32) : "";
  if (!problem.empty()) return fmt::format("{}: {}", name, problem);
  return fmt::format("{} is \"{}\"; allowed: {}", name, shown(text), allowed_values(type));
}

bool is_flag(const CLI::Option* option) {
  return option != nullptr && option->get_items_expected_max() == 0;
}

// CLI11 takes every text that starts with a number for a flag, and an empty one for true.
void check_flag(const std::string& name, const std::string& text) {
  if (text == "true" || text == "false") return;
  throw CLI::ConversionError(
      fmt::format("{} is \"{}\"; allowed: {}", name, shown(text), allowed_values("")),
      CLI::ExitCodes::ConversionError);
}

// "--temp: At Most 1 required but received 2", "--temp: 1 required FLOAT missing".
std::string bad_count(const CLI::App& command, const std::string& message) {
  const std::string name = message.substr(0, message.find(':'));
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr) return message;
  if (message.find("missing") != std::string::npos) {
    return fmt::format("{} has no value; allowed: {}", name,
                       allowed_values(option->get_type_name()));
  }
  return fmt::format("{} is given {} times; allowed: once", name, option->count());
}

// What is no option's value, in the order of the command line.
std::string stray_words(const std::vector<std::string>& words) {
  std::vector<std::string> texts;
  for (const std::string& word : words) {
    texts.push_back(shown(word));
    if (word.rfind('-', 0) == 0) return fmt::format("unknown option {}; see --help", shown(word));
  }
  return fmt::format("not expected: \"{}\"; text with spaces needs quotes",
                     fmt::join(texts, "\", \""));
}

// "--temp", "-n" and so on.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

bool mentions(const std::string& message, const std::string& name) {
  const auto is_word = [](char c) {
    return c == '-' || c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  for (size_t at = message.find(name); at != std::string::npos; at = message.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !is_word(message[at - 1])) && (end == message.size() || !is_word(message[end])))
      return true;
  }
  return false;
}

// Whether the option stands on the command line: "--temp 1", "--temp=1", "-n 1", "-n1".
bool is_given(const std::string& name, int argc, char** argv) {
  const bool is_long = name.rfind("--", 0) == 0;
  return std::any_of(argv + 1, argv + argc, [&](const char* argument) {
    const std::string_view text = argument;
    if (text.substr(0, name.size()) != name) return false;
    return !is_long || text.size() == name.size() || text[name.size()] == '=';
  });
}

}  // namespace

void check_option_texts(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type == "FILE") {
      option->check([](const std::string& path) {
        return std::string(path.empty() ? "the name is empty; allowed: a file name" : "");
      });
    } else if (is_flag(option)) {
      option->check([option](const std::string& text) {
        check_flag(option->get_name(), text);
        return std::string();
      });
    } else if (option->get_expected_max() > 1) {  // a list, whose parts add_list_option checks
      continue;
    } else if (type == "INT") {
      option->check([](const std::string& text) { return integer_problem(text, 64); });
    } else if (type == "FLOAT") {
      option->check(float_problem);
    }
  }
  for (CLI::App* command : app.get_subcommands({})) check_option_texts(*command);
}

void confine_environment(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    confine_environment(*command);
    // CLI11 reads the variables of a command that has such a callback when its own arguments are
    // parsed, and those of all others in any case.
    if (command->get_subcommands({}).empty()) command->parse_complete_callback([] {});
  }
}

void check_flag_texts(const CLI::App& app, int argc, char** argv) {
  const auto [command, depth] = named_command(app, argc, argv);
  for (int i = depth; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    const CLI::Option* before = command->get_option_no_throw(argv[i - 1]);
    const bool is_value = i > depth && before != nullptr && !is_flag(before);
    if (is_value || text.rfind("--", 0) != 0 || equals == std::string::npos) continue;
    const std::string name = text.substr(0, equals);
    if (is_flag(command->get_option_no_throw(name))) check_flag(name, text.substr(equals + 1));
  }
}

bool wants_help(const CLI::App& app) { return chosen_command(app).get_help_ptr()->count() > 0; }

std::string parse_error_text(const CLI::App& app, const CLI::ParseError& error, int argc,
                             char** argv) {
  const bool no_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
                          std::string(error.what()).find("subcommand") != std::string::npos;
  if (no_command) return missing_command(app, argc, argv);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    return stray_words(app.remaining(true));
  }
  const CLI::App& command = chosen_command(app);
  const bool is_count = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  const std::string text =
      is_count ? bad_count(command, error.what()) : bad_conversion(command, error.what());
  return name_environment(app, argc, argv, text);
}

std::string name_environment(const CLI::App& app, int argc, char** argv,
                             const std::string& message) {
  for (const CLI::Option* option : chosen_command(app).get_options()) {
    const std::string variable = option->get_envname();
    if (variable.empty()) continue;
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    const std::vector<std::string> names = names_of(*option);
    const auto given = [&](const std::string& name) { return is_given(name, argc, argv); };
    const auto meant = [&](const std::string& name) { return mentions(message, name); };
    if (std::any_of(names.begin(), names.end(), given)) continue;
    if (std::any_of(names.begin(), names.end(), meant)) {
      return fmt::format("{} (set by {})", message, variable);
    }
  }
  return message;
}

}  // namespace longdecode::tool
