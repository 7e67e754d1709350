// The tokenizer keys of a GGUF file.
#ifndef LONGDECODE_RUNNER_TOKENIZER_FROM_GGUF_H_
#define LONGDECODE_RUNNER_TOKENIZER_FROM_GGUF_H_

#include "longdecode/status.h"
#include "runner/gguf/gguf_file.h"
#include "runner/tokenizer/chat_template.h"
#include "runner/tokenizer/tokenizer.h"

namespace longdecode::runner {

// A missing or mistyped key is the getters' error; ids are checked by Tokenizer::create.
Result<TokenizerData> tokenizer_data(const GgufFile& file);

// The message names the file.
Result<Tokenizer> load_tokenizer(const GgufFile& file);

// kNotFound without tokenizer.chat_template, kUnsupported for an unknown family.
Result<ChatTemplate> load_chat_template(const GgufFile& file);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_FROM_GGUF_H_
