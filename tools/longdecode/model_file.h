// The GGUF file of -m. Errors name the flag beside the file.
#ifndef LONGDECODE_TOOLS_MODEL_FILE_H_
#define LONGDECODE_TOOLS_MODEL_FILE_H_

#include <memory>
#include <string>

#include "longdecode/status.h"
#include "runner/gguf/gguf_file.h"
#include "runner/model/session.h"
#include "runner/tokenizer/tokenizer.h"

namespace longdecode::tool {

// An error for `-m` left out.
Status check_model_path(const std::string& path);

Result<runner::GgufFile> open_model_file(const std::string& path);
Result<std::shared_ptr<const runner::Model>> load_model(const std::string& path);
Result<runner::Tokenizer> model_tokenizer(const runner::GgufFile& file);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_MODEL_FILE_H_
