// A session's sequence in a file: its tokens, what the KV cache holds of them, and the lengths from
// which it can go on. docs/formats/prompt-cache.md has the byte layout.
#ifndef LONGDECODE_RUNNER_PROMPT_CACHE_PROMPT_CACHE_H_
#define LONGDECODE_RUNNER_PROMPT_CACHE_PROMPT_CACHE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "longdecode/kv_format.h"
#include "longdecode/status.h"
#include "runner/gguf/mapped_file.h"
#include "runner/model/session.h"
#include "runner/prompt_cache/snapshot.h"

namespace longdecode::runner {

inline constexpr uint32_t kPromptCacheVersion = 1;
inline constexpr int32_t kMaxRestorePoints = 2;  // after the prompt, after the generation

// Writes what the session holds of `tokens` (all of its tokens, in order) to `path`, as an
// OutputFile: what was there stays until the new file is whole. points: 1 or 2 of
// ascending length, captured from this session. kUnavailable when writing fails.
Status save_prompt_cache(const std::string& path, uint64_t model_hash,
                         std::span<const int32_t> tokens, std::span<const RestorePoint> points,
                         const Session& session);

// A file of save_prompt_cache. Everything in it is untrusted.
class PromptCache {
 public:
  // kNotFound, kInvalidArgument (no regular file), kDataLoss (no prompt cache, cut, damaged),
  // kUnsupported (another version); the message names the file.
  static Result<PromptCache> open(const std::string& path);
  // The same for bytes in memory, which must outlive the object; `name` stands for the path.
  static Result<PromptCache> parse(std::span<const uint8_t> bytes, const std::string& name);

  // Brings the session to the longest stored length whose tokens are how `prompt` starts, and
  // gives that length. kInvalidArgument when the model or the session's format is another one or
  // when the prompt does not start with the cached tokens; the session is untouched then.
  Result<int64_t> restore(std::span<const int32_t> prompt, uint64_t model_hash,
                          Session* session) const;

  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  struct Point {
    int64_t num_tokens = 0;
    std::span<const uint8_t> logits;  // fp32 [vocab_size]
    std::span<const uint8_t> rings;
  };
  PromptCache() = default;
  Status parse_body(std::span<const uint8_t> body, const std::vector<int64_t>& point_tokens);
  Status check_session(uint64_t model_hash, const Session& session) const;
  Result<const Point*> find_point(std::span<const int32_t> prompt) const;

  std::string name_;
  std::optional<MappedFile> mapping_;
  uint64_t model_hash_ = 0;
  KvFormat format_;
  int32_t num_layers_ = 0;
  int32_t vocab_size_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<Point> points_;  // of ascending length
  std::span<const uint8_t> pages_;
};

// The checksum that ends a file, of everything before it.
uint64_t prompt_cache_checksum(std::span<const uint8_t> bytes);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_PROMPT_CACHE_PROMPT_CACHE_H_
