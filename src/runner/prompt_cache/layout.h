// The fixed part of a prompt cache file, little-endian. docs/formats/prompt-cache.md
#ifndef LONGDECODE_RUNNER_PROMPT_CACHE_LAYOUT_H_
#define LONGDECODE_RUNNER_PROMPT_CACHE_LAYOUT_H_

#include <cstdint>
#include <type_traits>

#include "runner/prompt_cache/prompt_cache.h"

namespace longdecode::runner {

inline constexpr char kPromptCacheMagic[8] = {'L', 'D', 'P', 'R', 'O', 'M', 'P', 'T'};

struct PromptCacheHeader {
  char magic[8] = {};
  uint32_t version = 0;
  int32_t num_points = 0;
  uint64_t model_hash = 0;
  int64_t num_tokens = 0;
  int32_t op = 0;  // the fields of KvFormat
  int32_t keys = 0;
  int32_t dtype = 0;
  int32_t num_kv_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t page_size = 0;
  int32_t num_layers = 0;
  int32_t vocab_size = 0;
  int32_t reserved = 0;
  int64_t point_tokens[kMaxRestorePoints] = {};  // ascending; 0 where there is no point
};
static_assert(sizeof(PromptCacheHeader) == 88 &&
              std::has_unique_object_representations_v<PromptCacheHeader>);

inline constexpr int64_t kChecksumBytes = 8;

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_PROMPT_CACHE_LAYOUT_H_
