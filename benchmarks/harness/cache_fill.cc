#include "benchmarks/harness/cache_fill.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "cache/device_buffer.h"

namespace longdecode::bench {
namespace {

// Tokens of each sequence in one append, as in a chunked prefill.
constexpr int64_t kFillTokens = 4096;

// Tokens [start, start + count) of every sequence as an append wants them: a strided view of the
// host's array, or a contiguous copy of it in `staging` on a device with its own memory.
Result<TensorView> stage(const TensorView& all, int64_t start, int64_t count,
                         const Backend& backend, const DeviceInfo& device,
                         const DeviceBuffer& staging) {
  if (all.data == nullptr) return all;  // V of MLA
  const int64_t element = dtype_bytes(all.dtype);
  TensorView view = all;
  view.shape[1] = count;
  view.data = static_cast<uint8_t*>(all.data) + start * all.stride[1] * element;
  if (backend.host_readable()) return view;
  const int64_t sequence_bytes = count * all.stride[1] * element;
  for (int64_t b = 0; b < all.shape[0]; ++b) {
    LD_RETURN_IF_ERROR(
        backend.copy(staging.data() + b * sequence_bytes,
                     static_cast<const uint8_t*>(view.data) + b * all.stride[0] * element,
                     sequence_bytes, device, nullptr));
  }
  view.data = staging.data();
  view.stride[0] = count * all.stride[1];
  return view;
}

struct Filler {
  const Workload& work;
  const Backend& backend;
  const DeviceInfo& device;
  KvCache& cache;
  DeviceBuffer k_staging, v_staging;
  std::vector<SequenceId> sequences;

  Status append(int64_t start, int64_t count) {
    const std::vector<int32_t> new_tokens(sequences.size(), static_cast<int32_t>(count));
    LD_RETURN_IF_ERROR(cache.reserve(sequences, new_tokens));
    LD_ASSIGN_OR_RETURN(const TensorView k,
                        stage(work.k, start, count, backend, device, k_staging));
    LD_ASSIGN_OR_RETURN(const TensorView v,
                        stage(work.v, start, count, backend, device, v_staging));
    return cache.append(0, k, v, nullptr);
  }
};

int64_t view_bytes(const TensorView& view) {
  int64_t last = 0;
  for (int32_t d = 0; d < view.rank; ++d) last += (view.shape[d] - 1) * view.stride[d];
  return (last + 1) * dtype_bytes(view.dtype);
}

}  // namespace

Result<KvCache> make_filled_cache(const Workload& work, const KvFormat& format,
                                  const Backend& backend, const DeviceInfo& device) {
  const WorkloadSpec& spec = work.spec;
  KvCacheDesc desc;
  desc.format = format;
  desc.num_pages = spec.batch * ((spec.kv_len + format.page_size - 1) / format.page_size);
  desc.max_sequences = spec.batch;
  desc.max_kv_len = spec.kv_len;
  LD_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(desc, device));
  Filler filler{work, backend, device, cache, {}, {}, {}};
  if (!backend.host_readable()) {
    const int64_t tokens = spec.batch * std::min(kFillTokens, spec.kv_len);
    const int64_t element = dtype_bytes(spec.dtype) * spec.num_kv_heads;
    LD_ASSIGN_OR_RETURN(filler.k_staging,
                        DeviceBuffer::create(tokens * spec.key_dim * element, backend, device));
    LD_ASSIGN_OR_RETURN(filler.v_staging,
                        DeviceBuffer::create(tokens * spec.value_dim * element, backend, device));
  }
  for (int32_t b = 0; b < spec.batch; ++b) {
    LD_ASSIGN_OR_RETURN(const SequenceId sequence, cache.add_sequence());
    filler.sequences.push_back(sequence);
  }
  const int64_t before_step = spec.kv_len - spec.query_len;
  for (int64_t start = 0; start < before_step; start += kFillTokens) {
    LD_RETURN_IF_ERROR(filler.append(start, std::min(kFillTokens, before_step - start)));
    LD_RETURN_IF_ERROR(cache.commit());
  }
  LD_RETURN_IF_ERROR(filler.append(before_step, spec.query_len));
  return cache;
}

int64_t cache_bytes(const KvFormat& format, int32_t batch, int64_t kv_len) {
  const int64_t pages = (kv_len + format.page_size - 1) / format.page_size;
  const auto pools = static_cast<int64_t>(format.bytes_per_token() *
                                          static_cast<double>(pages * format.page_size));
  const int64_t ring = format.keys == KeyEncoding::kPlain
                           ? 0
                           : int64_t{format.recent_ring_tokens()} * format.num_kv_heads *
                                 format.key_dim * dtype_bytes(format.dtype);
  return batch * (pools + ring);
}

Result<HostLayer> HostLayer::create(const KvLayerView& layer, const BatchView& step,
                                    const Backend& backend, const DeviceInfo& device,
                                    bool always_copy) {
  HostLayer host;
  host.layer_ = layer;
  host.step_ = step;
  if (backend.host_readable() && !always_copy) return host;
  const auto fetch = [&](auto*& pointer, int64_t num_bytes) -> Status {
    if (pointer == nullptr) return {};
    LD_ASSIGN_OR_RETURN(HostBuffer buffer, allocate_host(num_bytes));
    LD_RETURN_IF_ERROR(backend.copy(buffer.get(), pointer, num_bytes, device, nullptr));
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(buffer.get());
    host.buffers_.push_back(std::move(buffer));
    return {};
  };
  KvLayerView& view = host.layer_;
  LD_RETURN_IF_ERROR(fetch(view.k.data, view_bytes(view.k)));
  LD_RETURN_IF_ERROR(fetch(view.v.data, view_bytes(view.v)));
  LD_RETURN_IF_ERROR(fetch(view.recent_k.data, view_bytes(view.recent_k)));
  const int64_t last_page = view.num_pages - 1;
  const int64_t heads = view.format.num_kv_heads;
  LD_RETURN_IF_ERROR(fetch(
      view.chunks, last_page * view.chunk_page_stride_bytes + heads * view.format.chunk_bytes()));
  LD_RETURN_IF_ERROR(fetch(view.residuals, last_page * view.residual_page_stride_bytes +
                                               heads * view.format.residual_bytes()));
  const int64_t batch = step.batch;
  LD_RETURN_IF_ERROR(fetch(host.step_.block_table, batch * step.block_table_stride * 4));
  LD_RETURN_IF_ERROR(fetch(host.step_.kv_lens, batch * 4));
  LD_RETURN_IF_ERROR(fetch(host.step_.query_lens, batch * 4));
  LD_RETURN_IF_ERROR(fetch(host.step_.slots, batch * 4));
  return host;
}

}  // namespace longdecode::bench
