// The chat format of a model. A GGUF file carries a Jinja program (tokenizer.chat_template); this
// recognises the family that the program belongs to and writes the family's format itself.
#ifndef LONGDECODE_RUNNER_TOKENIZER_CHAT_TEMPLATE_H_
#define LONGDECODE_RUNNER_TOKENIZER_CHAT_TEMPLATE_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longdecode/status.h"
#include "runner/tokenizer/tokenizer.h"

namespace longdecode::runner {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // kChatMl: <|im_start|>role\ncontent<|im_end|>\n (SmolLM, Qwen).
  // kLlama3: <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>.
  enum class Family { kChatMl, kLlama3 };

  // kNotFound when the template is empty, kUnsupported when it is of no family known here.
  static Result<ChatTemplate> recognize(std::string_view template_text);

  Family family() const { return family_; }
  const char* name() const;  // "chatml", "llama-3"
  // What the template puts before a conversation without a system message; "" for nothing.
  const std::string& default_system() const { return default_system_; }

  // Tokens of the conversation up to where the assistant's answer starts. Special tokens come from
  // the format alone: "<|im_end|>" in a message's content is text.
  Result<Encoding> encode(std::span<const ChatMessage> messages, const Tokenizer& tokenizer) const;

  // Tokens that lead on from an assistant's answer, its text without an end token, to where the
  // answer to the user's next message starts: encode({..., answer}) without what came before.
  Result<Encoding> encode_next(const std::string& user_message, const Tokenizer& tokenizer) const;

 private:
  ChatTemplate(Family family, std::string default_system)
      : family_(family), default_system_(std::move(default_system)) {}

  Family family_;
  std::string default_system_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_CHAT_TEMPLATE_H_
