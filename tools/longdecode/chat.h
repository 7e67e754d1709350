// `generate -i`: a conversation, line by line.
#ifndef LONGDECODE_TOOLS_CHAT_H_
#define LONGDECODE_TOOLS_CHAT_H_

#include "generate_options.h"
#include "longdecode/status.h"

namespace longdecode::tool {

// The message of -p or -f, if any, then each line of stdin until its end is a user's turn; the
// answers go to stdout, an empty line after each. A turn prefills only what is new. Ctrl-C ends an
// answer, or the chat where it waits for a line.
Status run_chat(const GenerateOptions& options);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_CHAT_H_
