// --prompt-cache FILE: what of a prompt a file holds already, and the file after the run.
#ifndef LONGDECODE_TOOLS_PROMPT_CACHE_FILE_H_
#define LONGDECODE_TOOLS_PROMPT_CACHE_FILE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "longdecode/status.h"
#include "runner/model/session.h"
#include "runner/prompt_cache/prompt_cache.h"

namespace longdecode::tool {

class PromptCacheFile {
 public:
  // path "": no cache, nothing below does anything. Called before the work starts: a path that
  // cannot be written and a file that is no whole prompt cache are errors at once.
  static Result<PromptCacheFile> open(const std::string& path);

  // Brings an empty session to the longest cached part of the prompt; its tokens, 0 without a file.
  // An error when the file is there but of another model, format or prompt.
  Result<int64_t> restore(std::span<const int32_t> prompt, const runner::Model& model,
                          runner::Session& session);

  // The session holds the prompt and no more: the file does, too, unless it did before.
  Status save_prompt(std::span<const int32_t> prompt, const runner::Session& session);
  // The session holds the prompt and the first num_fed of the generated tokens.
  Status save_all(std::span<const int32_t> prompt, std::span<const int32_t> generated,
                  int64_t num_fed, const runner::Session& session);

 private:
  std::string path_;
  std::optional<runner::PromptCache> found_;
  uint64_t model_hash_ = 0;
  int64_t num_restored_ = 0;
  std::vector<runner::RestorePoint> points_;  // of the prompt
};

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_PROMPT_CACHE_FILE_H_
