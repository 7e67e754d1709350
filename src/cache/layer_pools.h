// The device memory of a KV cache: per layer its pools and rings.
#ifndef LONGDECODE_CACHE_LAYER_POOLS_H_
#define LONGDECODE_CACHE_LAYER_POOLS_H_

#include <cstdint>
#include <vector>

#include "base/backend.h"
#include "cache/device_buffer.h"
#include "longdecode/kv_cache.h"

namespace longdecode {

// Byte layout of one layer: pools in the order K, V, chunks, residuals, ring; a pool that the
// format does not have has page_bytes 0. Every pool starts at a multiple of kPoolAlignment.
struct LayerLayout {
  static constexpr int64_t kPoolAlignment = 256;

  int64_t k_page_bytes = 0;
  int64_t v_page_bytes = 0;
  int64_t chunk_page_bytes = 0;
  int64_t residual_page_bytes = 0;
  int64_t ring_bytes = 0;  // of one slot
  int64_t v_offset = 0;
  int64_t chunk_offset = 0;
  int64_t residual_offset = 0;
  int64_t ring_offset = 0;
  int64_t layer_bytes = 0;

  // desc has been validated. kOutOfMemory when the sizes exceed an int64.
  static Result<LayerLayout> create(const KvCacheDesc& desc);
};

class LayerPools {
 public:
  static Result<LayerPools> create(const KvCacheDesc& desc, const Backend& backend,
                                   const DeviceInfo& device);

  KvLayerView view(int32_t layer_idx) const;
  int64_t memory_bytes() const;

  // What append wrote to a partial page: K and V; of a two-plane page only V, because its keys are
  // still in the ring. All layers.
  Status copy_page(int32_t from_page, int32_t to_page, StreamHandle stream) const;
  Status copy_ring(SequenceId from, SequenceId to, StreamHandle stream) const;

 private:
  Status copy_block(int64_t pool_offset, int64_t block_bytes, int64_t from, int64_t to,
                    StreamHandle stream) const;

  KvCacheDesc desc_;
  LayerLayout layout_;
  const Backend* backend_ = nullptr;
  DeviceInfo device_;
  std::vector<DeviceBuffer> layers_;
};

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_LAYER_POOLS_H_
