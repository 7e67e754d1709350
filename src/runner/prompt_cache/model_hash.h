// What a prompt cache knows a model by.
#ifndef LONGDECODE_RUNNER_PROMPT_CACHE_MODEL_HASH_H_
#define LONGDECODE_RUNNER_PROMPT_CACHE_MODEL_HASH_H_

#include <cstdint>

#include "runner/gguf/gguf_file.h"

namespace longdecode::runner {

// Of the whole file, weights included: two fine-tunes of one model differ in nothing else. The
// XXH64 of the XXH64s of its 4 MiB blocks, so that threads share the work (several GB/s each).
uint64_t model_hash(const GgufFile& file, int32_t num_threads);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_PROMPT_CACHE_MODEL_HASH_H_
