#include "longdecode/kv_cache.h"

#include <memory>
#include <vector>

#include "capi/convert.h"
#include "capi/structs.h"

using namespace longdecode;
using namespace longdecode::capi;

struct ld_cache {
  explicit ld_cache(KvCache created)
      : cache(std::move(created)), format(from_format(cache.desc().format)) {
    for (int32_t l = 0; l < cache.desc().num_layers; ++l) {
      const KvLayerView view = cache.layer(l);
      layers.push_back({from_tensor(view.k), from_tensor(view.v), from_tensor(view.recent_k)});
    }
  }

  KvCache cache;
  // What the pointers of ld_cache_layer refer to.
  ld_kv_format format;
  struct LayerTensors {
    ld_tensor k, v, recent_k;
  };
  std::vector<LayerTensors> layers;
};

namespace {

const ld_tensor* if_present(const ld_tensor& tensor) {
  return tensor.data != nullptr ? &tensor : nullptr;
}

// Calls a KvCache function that returns a Result and stores its value.
template <typename Cache, typename T, typename Function>
ld_status_code get(Cache* cache, const char* name, T* value, Function&& function) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    LD_RETURN_IF_ERROR(check_pointer(name, value));
    LD_ASSIGN_OR_RETURN(*value, function());
    return {};
  });
}

}  // namespace

ld_status_code ld_append_kv(const ld_append_args* args, const ld_device_info* device,
                            void* stream) {
  return guarded([&]() -> Status {
    LD_ASSIGN_OR_RETURN(const AppendArgs cpp_args, to_append_args(args));
    LD_ASSIGN_OR_RETURN(const DeviceInfo cpp_device, to_device(device));
    return append_kv(cpp_args, cpp_device, stream);
  });
}

ld_status_code ld_cache_create(const ld_cache_desc* desc, const ld_device_info* device,
                               ld_cache** cache) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    *cache = nullptr;
    LD_ASSIGN_OR_RETURN(const KvCacheDesc cpp_desc, to_cache_desc(desc));
    LD_ASSIGN_OR_RETURN(const DeviceInfo cpp_device, to_device(device));
    LD_ASSIGN_OR_RETURN(KvCache created, KvCache::create(cpp_desc, cpp_device));
    *cache = new ld_cache(std::move(created));
    return {};
  });
}

void ld_cache_destroy(ld_cache* cache) { delete cache; }

ld_status_code ld_cache_num_free_pages(const ld_cache* cache, int64_t* num_pages) {
  return get(cache, "num_pages", num_pages,
             [&]() -> Result<int64_t> { return cache->cache.num_free_pages(); });
}

ld_status_code ld_cache_memory_bytes(const ld_cache* cache, int64_t* num_bytes) {
  return get(cache, "num_bytes", num_bytes,
             [&]() -> Result<int64_t> { return cache->cache.memory_bytes(); });
}

ld_status_code ld_cache_set_stream(ld_cache* cache, void* stream) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    return cache->cache.set_stream(stream);
  });
}

ld_status_code ld_cache_add_sequence(ld_cache* cache, int32_t* sequence) {
  return get(cache, "sequence", sequence, [&] { return cache->cache.add_sequence(); });
}

ld_status_code ld_cache_kv_len(const ld_cache* cache, int32_t sequence, int64_t* kv_len) {
  return get(cache, "kv_len", kv_len, [&] { return cache->cache.kv_len(sequence); });
}

ld_status_code ld_cache_fork(ld_cache* cache, int32_t parent, int32_t* child) {
  return get(cache, "child", child, [&] { return cache->cache.fork(parent); });
}

ld_status_code ld_cache_free_sequence(ld_cache* cache, int32_t sequence) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    return cache->cache.free_sequence(sequence);
  });
}

ld_status_code ld_cache_truncate(ld_cache* cache, int32_t sequence, int64_t num_tokens) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    return cache->cache.truncate(sequence, num_tokens);
  });
}

ld_status_code ld_cache_reserve(ld_cache* cache, const int32_t* sequences,
                                const int32_t* new_tokens, int32_t num_sequences) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    if (num_sequences < 0) {
      return invalid_argument("num_sequences is {}; allowed: 0 or more", num_sequences);
    }
    if (num_sequences > 0) {
      LD_RETURN_IF_ERROR(check_pointer("sequences", sequences));
      LD_RETURN_IF_ERROR(check_pointer("new_tokens", new_tokens));
    }
    const auto count = static_cast<size_t>(num_sequences);
    return cache->cache.reserve({sequences, count}, {new_tokens, count});
  });
}

ld_status_code ld_cache_step(const ld_cache* cache, ld_batch* batch) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    LD_RETURN_IF_ERROR(check_output("batch", batch));
    write_struct(from_batch(cache->cache.step()), batch);
    return {};
  });
}

ld_status_code ld_cache_append(ld_cache* cache, int32_t layer_idx, const ld_tensor* k,
                               const ld_tensor* v, void* stream) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    LD_ASSIGN_OR_RETURN(const TensorView cpp_k, to_tensor("k", k));
    LD_ASSIGN_OR_RETURN(const TensorView cpp_v, to_optional_tensor("v", v));
    return cache->cache.append(layer_idx, cpp_k, cpp_v, stream);
  });
}

ld_status_code ld_cache_shrink_step(ld_cache* cache, const int32_t* new_tokens,
                                    int32_t num_sequences) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    if (num_sequences < 0) {
      return invalid_argument("num_sequences is {}; allowed: 0 or more", num_sequences);
    }
    if (num_sequences > 0) LD_RETURN_IF_ERROR(check_pointer("new_tokens", new_tokens));
    return cache->cache.shrink_step({new_tokens, static_cast<size_t>(num_sequences)});
  });
}

ld_status_code ld_cache_mark_appended(ld_cache* cache, int32_t layer_idx) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    return cache->cache.mark_appended(layer_idx);
  });
}

ld_status_code ld_cache_commit(ld_cache* cache) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    return cache->cache.commit();
  });
}

ld_status_code ld_cache_layer(const ld_cache* cache, int32_t layer_idx, ld_kv_layer* layer) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    LD_RETURN_IF_ERROR(check_output("layer", layer));
    const int32_t num_layers = cache->cache.desc().num_layers;
    if (layer_idx < 0 || layer_idx >= num_layers) {
      return invalid_argument("layer_idx is {}; allowed: 0 to {}", layer_idx, num_layers - 1);
    }
    const KvLayerView view = cache->cache.layer(layer_idx);
    const ld_cache::LayerTensors& tensors = cache->layers[layer_idx];
    ld_kv_layer result = ld_kv_layer_default();
    result.format = &cache->format;
    result.k = if_present(tensors.k);
    result.v = if_present(tensors.v);
    result.recent_k = if_present(tensors.recent_k);
    result.chunks = view.chunks;
    result.residuals = view.residuals;
    result.chunk_page_stride_bytes = view.chunk_page_stride_bytes;
    result.residual_page_stride_bytes = view.residual_page_stride_bytes;
    result.num_pages = view.num_pages;
    write_struct(result, layer);
    return {};
  });
}

ld_status_code ld_cache_import_dense(ld_cache* cache, int32_t sequence, const ld_tensor* const* k,
                                     const ld_tensor* const* v, int32_t num_layers,
                                     const int32_t* block_table, int64_t num_block_table,
                                     int64_t kv_len, void* stream) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("cache", cache));
    LD_RETURN_IF_ERROR(check_pointer("k", k));
    if (num_layers != cache->cache.desc().num_layers) {
      return invalid_argument("num_layers is {}; allowed: that of the cache, {}", num_layers,
                              cache->cache.desc().num_layers);
    }
    if (num_block_table < 0) {
      return invalid_argument("num_block_table is {}; allowed: 0 or more", num_block_table);
    }
    if (num_block_table > 0) LD_RETURN_IF_ERROR(check_pointer("block_table", block_table));
    std::vector<PagedKv> layers(num_layers);
    for (int32_t l = 0; l < num_layers; ++l) {
      LD_ASSIGN_OR_RETURN(layers[l].k, to_tensor("k[layer]", k[l]));
      if (v == nullptr) continue;
      LD_ASSIGN_OR_RETURN(layers[l].v, to_tensor("v[layer]", v[l]));
    }
    return cache->cache.import_dense(
        sequence, layers, {block_table, static_cast<size_t>(num_block_table)}, kv_len, stream);
  });
}
