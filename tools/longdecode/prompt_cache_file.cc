#include "prompt_cache_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "output.h"
#include "runner/prompt_cache/model_hash.h"

namespace longdecode::tool {
namespace {

constexpr const char* kFlag = "--prompt-cache";

// The message of the runner names the file.
Status of_flag(const Status& status) { return in_context(fmt::format("{}: ", kFlag), status); }

}  // namespace

Result<PromptCacheFile> PromptCacheFile::open(const std::string& path) {
  PromptCacheFile file;
  if (path.empty()) return file;
  LD_RETURN_IF_ERROR(create_output(kFlag, path).status());
  file.path_ = path;
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    auto found = runner::PromptCache::open(path);
    if (!found.ok()) return of_flag(found.status());
    file.found_ = std::move(found).value();
  }
  return file;
}

Result<int64_t> PromptCacheFile::restore(std::span<const int32_t> prompt,
                                         const runner::Model& model, runner::Session& session) {
  if (path_.empty()) return 0;
  LD_ASSIGN_OR_RETURN(const DeviceInfo cpu, detect_device(DeviceType::kCpu));
  model_hash_ = runner::model_hash(model.file(), cpu.num_threads);
  if (!found_) return 0;
  const Result<int64_t> restored = found_->restore(prompt, model_hash_, &session);
  if (!restored.ok()) return of_flag(restored.status());
  num_restored_ = *restored;
  found_.reset();  // unmaps the file before it is replaced
  return num_restored_;
}

Status PromptCacheFile::save_prompt(std::span<const int32_t> prompt,
                                    const runner::Session& session) {
  if (path_.empty()) return {};
  LD_ASSIGN_OR_RETURN(auto point, runner::capture_point(session));
  points_ = {std::move(point)};
  if (num_restored_ == session.num_tokens()) return {};
  return of_flag(runner::save_prompt_cache(path_, model_hash_, prompt, points_, session));
}

Status PromptCacheFile::save_all(std::span<const int32_t> prompt,
                                 std::span<const int32_t> generated, int64_t num_fed,
                                 const runner::Session& session) {
  if (path_.empty() || num_fed == 0) return {};
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), generated.begin(), generated.begin() + num_fed);
  LD_ASSIGN_OR_RETURN(auto point, runner::capture_point(session));
  points_.push_back(std::move(point));
  return of_flag(runner::save_prompt_cache(path_, model_hash_, tokens, points_, session));
}

}  // namespace longdecode::tool
