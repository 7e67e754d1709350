#include "prompt.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "output.h"
#include "runner/tokenizer/chat_template.h"
#include "runner/tokenizer/from_gguf.h"
#include "runner/tokenizer/utf8.h"

namespace longdecode::tool {
namespace {

// Far beyond any context; an endless device ends here.
constexpr size_t kMaxPromptBytes = size_t{256} << 20;

Result<std::string> read_all(std::FILE* file, const std::string& name) {
  std::string text;
  char block[1 << 16];
  size_t count = 0;
  while ((count = std::fread(block, 1, sizeof(block), file)) > 0) {
    text.append(block, count);
    if (text.size() > kMaxPromptBytes) {
      return invalid_argument("{} is larger than {} bytes", name, kMaxPromptBytes);
    }
  }
  drop_byte_order_mark(text);
  if (std::ferror(file) == 0) return text;
  return invalid_argument("{}: cannot be read: {}", name, std::strerror(errno));
}

Result<std::string> read_file(const std::string& path) {
  if (path == "-") return read_all(stdin, "-f - (stdin)");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return invalid_argument("-f {} is a directory", path);
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return not_found("-f {}: {}", path, std::strerror(errno));
  }
  Result<std::string> text = read_all(file, "-f " + path);
  std::fclose(file);
  return text;
}

// What gave the prompt: "-p", "-f FILE".
std::string flag_of(const PromptOptions& options, size_t prompt_idx) {
  return options.texts.empty() ? "-f " + options.file_paths[prompt_idx] : "-p";
}

}  // namespace

void drop_byte_order_mark(std::string& text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.rfind(kMark, 0) == 0) text.erase(0, kMark.size());
}

std::string prompt_name(const PromptOptions& options, size_t prompt_idx) {
  if (num_prompts(options) == 1) return "the prompt";
  return fmt::format("prompt {} ({})", prompt_idx, flag_of(options, prompt_idx));
}

Result<std::string> read_prompt(const PromptOptions& options, size_t prompt_idx) {
  std::string text;
  if (options.texts.empty()) {
    LD_ASSIGN_OR_RETURN(text, read_file(options.file_paths[prompt_idx]));
  } else {
    text = options.texts[prompt_idx];
  }
  std::string name = prompt_name(options, prompt_idx);
  if (num_prompts(options) == 1) name += fmt::format(" ({})", flag_of(options, prompt_idx));
  if (text.empty()) return invalid_argument("{} is empty", name);
  const size_t valid = runner::utf8_valid_prefix(text);
  if (valid < text.size()) {
    return invalid_argument(
        "{} is not UTF-8: byte 0x{:02x} at offset {}; convert it, e.g. with iconv", name,
        static_cast<unsigned char>(text[valid]), valid);
  }
  return text;
}

Result<runner::Encoding> encode_prompt(const PromptOptions& options, size_t prompt_idx,
                                       const std::string& prompt, const runner::GgufFile& file,
                                       const runner::Tokenizer& tokenizer) {
  runner::Encoding encoding;
  if (options.chat) {
    Result<runner::ChatTemplate> chat = runner::load_chat_template(file);
    if (!chat.ok()) {
      return Status(chat.status().code(),
                    chat.status().message() + "; leave out --chat to continue the text as it is");
    }
    const std::vector<runner::ChatMessage> messages = {{"user", prompt}};
    LD_ASSIGN_OR_RETURN(encoding, chat->encode(messages, tokenizer));
  } else {
    encoding = tokenizer.encode(prompt, {.parse_special = options.parse_special});
  }
  if (encoding.ids.empty()) {
    return invalid_argument("{} has no tokens in this model's vocabulary",
                            prompt_name(options, prompt_idx));
  }
  if (encoding.num_dropped_bytes > 0) {
    print_note(
        fmt::format("{} bytes of {} have no token in this model's vocabulary and are left out",
                    encoding.num_dropped_bytes, prompt_name(options, prompt_idx)));
  }
  return encoding;
}

}  // namespace longdecode::tool
