#include "runner/prompt_cache/cache_memory.h"

#include <algorithm>
#include <cstddef>

#include "base/errors.h"
#include "base/status_macros.h"
#include "ops/backends.h"

namespace longdecode::runner {
namespace {

struct Extent {
  int64_t used = 0;
  int64_t stored = 0;
};

// Rows of a [pages, heads, page_size, dim] pool; head by head, because rows of a head are adjacent.
void add_rows(const TensorView& pool, const int32_t* pages, Extent tokens,
              std::vector<MemoryBlock>* blocks) {
  const int64_t element = dtype_bytes(pool.dtype);
  const int64_t page_size = pool.shape[2];
  const int64_t row_bytes = pool.stride[2] * element;
  for (int64_t first = 0, page = 0; first < tokens.stored; first += page_size, ++page) {
    const int64_t used = std::clamp<int64_t>(tokens.used - first, 0, page_size);
    const int64_t stored = std::min(tokens.stored - first, page_size);
    for (int64_t head = 0; head < pool.shape[1]; ++head) {
      uint8_t* data = nullptr;
      if (used > 0) {
        data = static_cast<uint8_t*>(pool.data) +
               (pages[page] * pool.stride[0] + head * pool.stride[1]) * element;
      }
      blocks->push_back({data, used * row_bytes, stored * row_bytes});
    }
  }
}

void add_planes(uint8_t* plane, int64_t page_stride, int64_t page_bytes, const int32_t* pages,
                Extent num_pages, std::vector<MemoryBlock>* blocks) {
  for (int64_t page = 0; page < num_pages.stored; ++page) {
    const bool used = page < num_pages.used;
    blocks->push_back(
        {used ? plane + pages[page] * page_stride : nullptr, used ? page_bytes : 0, page_bytes});
  }
}

}  // namespace

Result<CacheMemory> CacheMemory::open(const KvCache& cache, const DeviceInfo& device) {
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(device.type));
  CacheMemory memory(cache, device, *backend);
  const BatchView& step = cache.step();
  if (step.batch != 1) {
    return failed_precondition("the cache's step has {} sequences; 1 is needed", step.batch);
  }
  memory.pages_.resize(static_cast<size_t>(step.block_table_stride));
  LD_RETURN_IF_ERROR(backend->copy(memory.pages_.data(), step.block_table,
                                   4 * step.block_table_stride, device, nullptr));
  LD_RETURN_IF_ERROR(backend->copy(&memory.slot_, step.slots, 4, device, nullptr));
  return memory;
}

Status CacheMemory::read(const MemoryBlock& block, uint8_t* to) const {
  return backend_.copy(to, block.data, block.used_bytes, device_, nullptr);
}

Status CacheMemory::write(const MemoryBlock& block, const uint8_t* from) const {
  return backend_.copy(block.data, from, block.used_bytes, device_, nullptr);
}

std::vector<MemoryBlock> CacheMemory::page_blocks(int64_t num_tokens, int64_t stored_tokens) const {
  std::vector<MemoryBlock> blocks;
  const int32_t* pages = pages_.data();
  const Extent tokens = {num_tokens, stored_tokens};
  for (int32_t layer = 0; layer < cache_.desc().num_layers; ++layer) {
    const KvLayerView view = cache_.layer(layer);
    const KvFormat& format = view.format;
    if (format.keys == KeyEncoding::kPlain) {
      add_rows(view.k, pages, tokens, &blocks);
    } else {
      const Extent quantized = {format.num_quantized_pages(num_tokens),
                                format.num_quantized_pages(stored_tokens)};
      add_planes(view.chunks, view.chunk_page_stride_bytes,
                 format.num_kv_heads * format.chunk_bytes(), pages, quantized, &blocks);
      add_planes(view.residuals, view.residual_page_stride_bytes,
                 format.num_kv_heads * format.residual_bytes(), pages, quantized, &blocks);
    }
    add_rows(view.v, pages, tokens, &blocks);
  }
  return blocks;
}

std::vector<MemoryBlock> CacheMemory::ring_blocks(int64_t num_tokens) const {
  std::vector<MemoryBlock> blocks;
  const KvFormat& format = cache_.desc().format;
  if (format.keys == KeyEncoding::kPlain) return blocks;
  const int64_t rows = std::min<int64_t>(num_tokens, format.recent_ring_tokens());
  for (int32_t layer = 0; layer < cache_.desc().num_layers; ++layer) {
    add_rows(cache_.layer(layer).recent_k, &slot_, {rows, rows}, &blocks);
  }
  return blocks;
}

int64_t page_block_bytes(const KvFormat& format, int32_t num_layers, int64_t stored_tokens) {
  const int64_t element = dtype_bytes(format.dtype);
  int64_t head_bytes = stored_tokens * format.value_dim * element;
  if (format.keys == KeyEncoding::kPlain) {
    head_bytes += stored_tokens * format.key_dim * element;
  } else {
    head_bytes += format.num_quantized_pages(stored_tokens) *
                  (format.chunk_bytes() + format.residual_bytes());
  }
  return num_layers * format.num_kv_heads * head_bytes;
}

int64_t ring_block_bytes(const KvFormat& format, int32_t num_layers, int64_t num_tokens) {
  if (format.keys == KeyEncoding::kPlain) return 0;
  const int64_t rows = std::min<int64_t>(num_tokens, format.recent_ring_tokens());
  return num_layers * int64_t{format.num_kv_heads} * rows * format.key_dim *
         dtype_bytes(format.dtype);
}

}  // namespace longdecode::runner
