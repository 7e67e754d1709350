// The first tokens of a text file, for the commands that run a model over a text.
#ifndef LONGDECODE_TOOLS_TEXT_TOKENS_H_
#define LONGDECODE_TOOLS_TEXT_TOKENS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "longdecode/status.h"
#include "runner/model/session.h"

namespace longdecode::tool {

// -m and -c; `allowed` is what its help says of the number.
void add_text_flags(CLI::App& command, std::string& model_path, int64_t& context_len,
                    const std::string& allowed);

// The first context_len tokens of the file, all up to the model's context for 0 (plain UTF-8 text;
// "-": stdin). kInvalidArgument when the text is shorter than context_len, when the model's context
// is, or when fewer than min_tokens would be left; it says both numbers.
Result<std::vector<int32_t>> read_text_tokens(const std::string& path, const runner::Model& model,
                                              int64_t context_len, int64_t min_tokens);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_TEXT_TOKENS_H_
