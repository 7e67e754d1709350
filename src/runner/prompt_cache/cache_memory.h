// The bytes of a KV cache that hold a sequence's tokens, in an order that depends on the format and
// the length alone: what a prompt cache stores. Nothing else of a page (its free rows, the planes
// of keys that are still in the ring) is touched.
#ifndef LONGDECODE_RUNNER_PROMPT_CACHE_CACHE_MEMORY_H_
#define LONGDECODE_RUNNER_PROMPT_CACHE_CACHE_MEMORY_H_

#include <cstdint>
#include <vector>

#include "base/backend.h"
#include "longdecode/kv_cache.h"
#include "longdecode/kv_format.h"

namespace longdecode::runner {

// A run of bytes. A sequence of fewer tokens than are stored has the first `used_bytes` of it.
struct MemoryBlock {
  uint8_t* data = nullptr;  // nullptr when used_bytes is 0
  int64_t used_bytes = 0;
  int64_t stored_bytes = 0;
};

// The sequence of cache.step(), of batch 1, in the memory of the cache's device.
class CacheMemory {
 public:
  // The cache outlives the object.
  static Result<CacheMemory> open(const KvCache& cache, const DeviceInfo& device);

  // Layer after layer: plain keys, or codes and residuals of quantised pages; then V. `num_tokens`
  // of the sequence (at least 1, at most stored_tokens), as part of stored_tokens.
  std::vector<MemoryBlock> page_blocks(int64_t num_tokens, int64_t stored_tokens) const;
  // Layer after layer: the rows of the ring that num_tokens tokens have written. None for plain
  // keys.
  std::vector<MemoryBlock> ring_blocks(int64_t num_tokens) const;

  // used_bytes of a block, from and to host memory.
  Status read(const MemoryBlock& block, uint8_t* to) const;
  Status write(const MemoryBlock& block, const uint8_t* from) const;

 private:
  CacheMemory(const KvCache& cache, const DeviceInfo& device, const Backend& backend)
      : cache_(cache), device_(device), backend_(backend) {}
  const KvCache& cache_;
  DeviceInfo device_;
  const Backend& backend_;
  std::vector<int32_t> pages_;  // ids, in host memory
  int32_t slot_ = 0;
};

// Sums of stored_bytes of those blocks, known without a cache. Sizes are bounded by the caller:
// num_tokens below 2^31, at most 4096 layers.
int64_t page_block_bytes(const KvFormat& format, int32_t num_layers, int64_t stored_tokens);
int64_t ring_block_bytes(const KvFormat& format, int32_t num_layers, int64_t num_tokens);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_PROMPT_CACHE_CACHE_MEMORY_H_
