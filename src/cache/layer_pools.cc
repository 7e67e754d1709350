#include "cache/layer_pools.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cache/checked_math.h"

namespace longdecode {

Result<LayerLayout> LayerLayout::create(const KvCacheDesc& desc) {
  const KvFormat& format = desc.format;
  const bool two_plane = format.keys == KeyEncoding::kTwoPlane;
  const int64_t element_bytes = dtype_bytes(format.dtype);
  const int64_t page_rows = int64_t{format.num_kv_heads} * format.page_size;
  LayerLayout layout;  // format is bounded, so the bytes of one page are too
  if (!two_plane) layout.k_page_bytes = page_rows * format.key_dim * element_bytes;
  if (format.op == Op::kGqa) layout.v_page_bytes = page_rows * format.value_dim * element_bytes;
  if (two_plane) {
    layout.chunk_page_bytes = format.num_kv_heads * format.chunk_bytes();
    layout.residual_page_bytes = format.num_kv_heads * format.residual_bytes();
    layout.ring_bytes =
        int64_t{format.num_kv_heads} * format.recent_ring_tokens() * format.key_dim * element_bytes;
  }
  const auto pool_bytes = [&](int64_t page_bytes) {
    return (CheckedSize(page_bytes) * desc.num_pages).aligned(kPoolAlignment);
  };
  CheckedSize end = pool_bytes(layout.k_page_bytes);
  layout.v_offset = end.value();
  end += pool_bytes(layout.v_page_bytes);
  layout.chunk_offset = end.value();
  end += pool_bytes(layout.chunk_page_bytes);
  layout.residual_offset = end.value();
  end += pool_bytes(layout.residual_page_bytes);
  layout.ring_offset = end.value();
  end += CheckedSize(layout.ring_bytes) * desc.max_sequences;
  layout.layer_bytes = end.value();
  if ((end * desc.num_layers).overflowed()) {
    return out_of_memory("num_pages {} and max_sequences {} in {} layers exceed 2^63 bytes",
                         desc.num_pages, desc.max_sequences, desc.num_layers);
  }
  return layout;
}

Result<LayerPools> LayerPools::create(const KvCacheDesc& desc, const Backend& backend,
                                      const DeviceInfo& device) {
  LayerPools pools;
  LD_ASSIGN_OR_RETURN(pools.layout_, LayerLayout::create(desc));
  pools.desc_ = desc;
  pools.backend_ = &backend;
  pools.device_ = device;
  if (device.memory_bytes > 0 && pools.memory_bytes() > device.memory_bytes) {
    return out_of_memory("the pools of num_pages {} in {} layers take {} bytes; the device has {}",
                         desc.num_pages, desc.num_layers, pools.memory_bytes(),
                         device.memory_bytes);
  }
  pools.layers_.reserve(desc.num_layers);
  for (int32_t layer_idx = 0; layer_idx < desc.num_layers; ++layer_idx) {
    LD_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                        DeviceBuffer::create(pools.layout_.layer_bytes, backend, device));
    pools.layers_.push_back(std::move(buffer));
  }
  return pools;
}

int64_t LayerPools::memory_bytes() const { return layout_.layer_bytes * desc_.num_layers; }

KvLayerView LayerPools::view(int32_t layer_idx) const {
  const KvFormat& format = desc_.format;
  uint8_t* const base = layers_[layer_idx].data();
  KvLayerView view;
  view.format = format;
  view.num_pages = desc_.num_pages;
  if (format.keys == KeyEncoding::kPlain) {
    view.k = TensorView::contiguous(
        base, format.dtype,
        {desc_.num_pages, format.num_kv_heads, format.page_size, format.key_dim});
  } else {
    view.chunks = base + layout_.chunk_offset;
    view.chunk_page_stride_bytes = layout_.chunk_page_bytes;
    view.residuals = base + layout_.residual_offset;
    view.residual_page_stride_bytes = layout_.residual_page_bytes;
    view.recent_k = TensorView::contiguous(
        base + layout_.ring_offset, format.dtype,
        {desc_.max_sequences, format.num_kv_heads, format.recent_ring_tokens(), format.key_dim});
  }
  if (format.op == Op::kGqa) {
    view.v = TensorView::contiguous(
        base + layout_.v_offset, format.dtype,
        {desc_.num_pages, format.num_kv_heads, format.page_size, format.value_dim});
  }
  return view;
}

Status LayerPools::copy_block(int64_t pool_offset, int64_t block_bytes, int64_t from, int64_t to,
                              StreamHandle stream) const {
  if (block_bytes == 0) return {};
  for (const DeviceBuffer& layer : layers_) {
    uint8_t* const pool = layer.data() + pool_offset;
    LD_RETURN_IF_ERROR(backend_->copy(pool + to * block_bytes, pool + from * block_bytes,
                                      block_bytes, device_, stream));
  }
  return {};
}

Status LayerPools::copy_page(int32_t from_page, int32_t to_page, StreamHandle stream) const {
  LD_RETURN_IF_ERROR(copy_block(0, layout_.k_page_bytes, from_page, to_page, stream));
  return copy_block(layout_.v_offset, layout_.v_page_bytes, from_page, to_page, stream);
}

Status LayerPools::copy_ring(SequenceId from, SequenceId to, StreamHandle stream) const {
  return copy_block(layout_.ring_offset, layout_.ring_bytes, from, to, stream);
}

}  // namespace longdecode
