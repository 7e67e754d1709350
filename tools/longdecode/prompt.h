// From flags to tokens: reads the prompt and encodes it with the model's tokenizer.
#ifndef LONGDECODE_TOOLS_PROMPT_H_
#define LONGDECODE_TOOLS_PROMPT_H_

#include <string>

#include "generate_options.h"
#include "longdecode/status.h"
#include "runner/gguf/gguf_file.h"
#include "runner/tokenizer/tokenizer.h"

namespace longdecode::tool {

// It says that a text is UTF-8, and is not a part of it.
void drop_byte_order_mark(std::string& text);

// How errors and notes call a prompt: "the prompt", or "prompt 1 (-f FILE)" where there are
// several.
std::string prompt_name(const PromptOptions& options, size_t prompt_idx);

// The text of a -p, or the whole of a -f. kInvalidArgument for a directory, an empty prompt and
// text that is not UTF-8; kNotFound for a missing file.
Result<std::string> read_prompt(const PromptOptions& options, size_t prompt_idx);

// Tokens of the prompt, the chat template around it if asked for. Never empty.
Result<runner::Encoding> encode_prompt(const PromptOptions& options, size_t prompt_idx,
                                       const std::string& prompt, const runner::GgufFile& file,
                                       const runner::Tokenizer& tokenizer);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_PROMPT_H_
