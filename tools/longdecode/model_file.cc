#include "model_file.h"

#include "base/errors.h"
#include "runner/tokenizer/from_gguf.h"

namespace longdecode::tool {
namespace {

template <typename T>
Result<T> with_flag(Result<T> result) {
  if (result.ok()) return result;
  return in_context("-m: ", result.status());
}

}  // namespace

Status check_model_path(const std::string& path) {
  if (!path.empty()) return {};
  return invalid_argument("no model: give -m FILE (a GGUF file) or set LONGDECODE_MODEL");
}

Result<runner::GgufFile> open_model_file(const std::string& path) {
  return with_flag(runner::GgufFile::open(path));
}

Result<std::shared_ptr<const runner::Model>> load_model(const std::string& path) {
  return with_flag(runner::Model::load(path));
}

Result<runner::Tokenizer> model_tokenizer(const runner::GgufFile& file) {
  return with_flag(runner::load_tokenizer(file));
}

}  // namespace longdecode::tool
