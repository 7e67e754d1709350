#include "runner/tokenizer/chat_template.h"

#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::runner {
namespace {

constexpr std::string_view kImStart = "<|im_start|>";
constexpr std::string_view kImEnd = "<|im_end|>";
constexpr std::string_view kStartHeader = "<|start_header_id|>";
constexpr std::string_view kEndHeader = "<|end_header_id|>";
constexpr std::string_view kEndOfTurn = "<|eot_id|>";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t pos = text.find(from); pos != std::string_view::npos; pos = text.find(from)) {
    result.append(text.substr(0, pos)).append(to);
    text.remove_prefix(pos + from.size());
  }
  return result.append(text);
}

// The literal system message that a ChatML template adds on its own: the text between
// "<|im_start|>system\n" and "<|im_end|>" where that text is one Jinja string literal.
std::string chatml_default_system(std::string_view template_text) {
  for (std::string_view newline : {"\n", "\\n"}) {
    const std::string opening = fmt::format("{}system{}", kImStart, newline);
    const size_t begin = template_text.find(opening);
    if (begin == std::string_view::npos) continue;
    const std::string_view rest = template_text.substr(begin + opening.size());
    const size_t end = rest.find(kImEnd);
    const std::string_view literal = rest.substr(0, end);
    if (end == std::string_view::npos || contains(literal, "{{") || contains(literal, "' +")) {
      continue;
    }
    return replaced(replaced(literal, "\\n", "\n"), "\\'", "'");
  }
  return {};
}

std::string trimmed(const std::string& text) {
  const char* kSpaces = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// Collects a prompt. Plain text between two special tokens is encoded in one go, as the whole
// string would be: pieces do not stop at the seam between the format and a message.
class PromptBuilder {
 public:
  PromptBuilder(const Tokenizer& tokenizer, Encoding& encoding)
      : tokenizer_(tokenizer), encoding_(encoding) {}

  void text(std::string_view text) { pending_ += text; }

  Status special(std::string_view name) {
    flush();
    const int32_t id = tokenizer_.find_token(name);
    if (id < 0) {
      return data_loss("the chat template uses {}, which is no token of the vocabulary", name);
    }
    encoding_.ids.push_back(id);
    return {};
  }

  void flush() {
    const Encoding part =
        tokenizer_.encode(std::exchange(pending_, {}), {.parse_special = false, .add_bos = false});
    encoding_.ids.insert(encoding_.ids.end(), part.ids.begin(), part.ids.end());
    encoding_.num_dropped_bytes += part.num_dropped_bytes;
  }

 private:
  const Tokenizer& tokenizer_;
  Encoding& encoding_;
  std::string pending_;
};

Status add_llama3_header(PromptBuilder& prompt, const std::string& role) {
  LD_RETURN_IF_ERROR(prompt.special(kStartHeader));
  prompt.text(role);
  LD_RETURN_IF_ERROR(prompt.special(kEndHeader));
  prompt.text("\n\n");
  return {};
}

// What stands before a message's content, after it, and between it and the next message.
Status begin_message(PromptBuilder& prompt, ChatTemplate::Family family, const std::string& role) {
  if (family == ChatTemplate::Family::kLlama3) return add_llama3_header(prompt, role);
  LD_RETURN_IF_ERROR(prompt.special(kImStart));
  prompt.text(role);
  prompt.text("\n");
  return {};
}

Status end_message(PromptBuilder& prompt, ChatTemplate::Family family) {
  if (family == ChatTemplate::Family::kLlama3) return prompt.special(kEndOfTurn);
  LD_RETURN_IF_ERROR(prompt.special(kImEnd));
  prompt.text("\n");
  return {};
}

Status add_message(PromptBuilder& prompt, ChatTemplate::Family family, const ChatMessage& message) {
  LD_RETURN_IF_ERROR(begin_message(prompt, family, message.role));
  const bool trims = family == ChatTemplate::Family::kLlama3;
  prompt.text(trims ? trimmed(message.content) : message.content);
  return end_message(prompt, family);
}

}  // namespace

Result<ChatTemplate> ChatTemplate::recognize(std::string_view template_text) {
  if (template_text.empty()) {
    return not_found("the model has no chat template (tokenizer.chat_template)");
  }
  if (contains(template_text, kStartHeader) && contains(template_text, kEndOfTurn)) {
    return ChatTemplate(Family::kLlama3, {});
  }
  if (contains(template_text, kImStart) && contains(template_text, kImEnd)) {
    return ChatTemplate(Family::kChatMl, chatml_default_system(template_text));
  }
  return unsupported(
      "the model's chat template is of no known family (chatml, llama-3); it starts \"{}\"",
      template_text.substr(0, 48));
}

const char* ChatTemplate::name() const { return family_ == Family::kChatMl ? "chatml" : "llama-3"; }

Result<Encoding> ChatTemplate::encode(std::span<const ChatMessage> messages,
                                      const Tokenizer& tokenizer) const {
  Encoding encoding;
  if (tokenizer.adds_bos()) encoding.ids.push_back(tokenizer.bos_id());
  PromptBuilder prompt(tokenizer, encoding);
  const bool has_system = !messages.empty() && messages[0].role == "system";
  if (!has_system && !default_system_.empty()) {
    LD_RETURN_IF_ERROR(add_message(prompt, family_, {"system", default_system_}));
  }
  for (const ChatMessage& message : messages) {
    LD_RETURN_IF_ERROR(add_message(prompt, family_, message));
  }
  LD_RETURN_IF_ERROR(begin_message(prompt, family_, "assistant"));
  prompt.flush();
  return encoding;
}

Result<Encoding> ChatTemplate::encode_next(const std::string& user_message,
                                           const Tokenizer& tokenizer) const {
  Encoding encoding;
  PromptBuilder prompt(tokenizer, encoding);
  LD_RETURN_IF_ERROR(end_message(prompt, family_));
  LD_RETURN_IF_ERROR(add_message(prompt, family_, {"user", user_message}));
  LD_RETURN_IF_ERROR(begin_message(prompt, family_, "assistant"));
  prompt.flush();
  return encoding;
}

}  // namespace longdecode::runner
