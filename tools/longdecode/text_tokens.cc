#include "text_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "model_file.h"
#include "prompt.h"

namespace longdecode::tool {

void add_text_flags(CLI::App& command, std::string& model_path, int64_t& context_len,
                    const std::string& allowed) {
  command.add_option("-m,--model", model_path, "Model, a GGUF file (required)")
      ->type_name("FILE")
      ->envname("LONGDECODE_MODEL");
  command
      .add_option("-c,--ctx-size", context_len,
                  fmt::format("Tokens of the text, {}at most the model's context", allowed))
      ->envname("LONGDECODE_CTX_SIZE");
}

Result<std::vector<int32_t>> read_text_tokens(const std::string& path, const runner::Model& model,
                                              int64_t context_len, int64_t min_tokens) {
  const int64_t model_context = model.config().context_len;
  if (context_len > model_context) {
    return invalid_argument("-c is {}; the context of the model is {} tokens", context_len,
                            model_context);
  }
  PromptOptions options;
  options.file_paths = {path};
  LD_ASSIGN_OR_RETURN(const std::string text, read_prompt(options, 0));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, model_tokenizer(model.file()));
  LD_ASSIGN_OR_RETURN(auto encoding, encode_prompt(options, 0, text, model.file(), tokenizer));
  std::vector<int32_t> tokens = std::move(encoding.ids);
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens < context_len) {
    return invalid_argument("-f {} has {} tokens; -c needs {}", path, num_tokens, context_len);
  }
  if (num_tokens < min_tokens) {
    return invalid_argument("-f {} has {} tokens; {} or more are needed", path, num_tokens,
                            min_tokens);
  }
  tokens.resize(
      static_cast<size_t>(context_len > 0 ? context_len : std::min(num_tokens, model_context)));
  return tokens;
}

}  // namespace longdecode::tool
