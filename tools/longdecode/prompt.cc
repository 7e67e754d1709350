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
      return invalid_argument("prompt {} is larger than {} bytes", name, kMaxPromptBytes);
    }
  }
  if (std::ferror(file) == 0) return text;
  return invalid_argument("prompt {}: cannot be read: {}", name, std::strerror(errno));
}

Result<std::string> read_file(const std::string& path) {
  if (path == "-") return read_all(stdin, "from stdin");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return invalid_argument("prompt file {} is a directory", path);
  }
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return not_found("prompt file {}: {}", path, std::strerror(errno));
  }
  Result<std::string> text = read_all(file, "file " + path);
  std::fclose(file);
  return text;
}

}  // namespace

Result<std::string> read_prompt(const PromptOptions& options) {
  std::string text = options.text;
  if (!options.has_text) {
    LD_ASSIGN_OR_RETURN(text, read_file(options.file_path));
  }
  const std::string name = options.has_text ? "-p" : "-f " + options.file_path;
  if (text.empty()) return invalid_argument("the prompt ({}) is empty", name);
  const size_t valid = runner::utf8_valid_prefix(text);
  if (valid < text.size()) {
    return invalid_argument(
        "the prompt ({}) is not UTF-8: byte 0x{:02x} at offset {}; convert it, e.g. with iconv",
        name, static_cast<unsigned char>(text[valid]), valid);
  }
  return text;
}

Result<runner::Encoding> encode_prompt(const PromptOptions& options, const std::string& prompt,
                                       const runner::GgufFile& file,
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
    return invalid_argument("the prompt has no tokens in this model's vocabulary");
  }
  if (encoding.num_dropped_bytes > 0) {
    print_note(fmt::format(
        "{} bytes of the prompt have no token in this model's vocabulary and are left out",
        encoding.num_dropped_bytes));
  }
  return encoding;
}

}  // namespace longdecode::tool
