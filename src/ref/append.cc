#include "ref/append.h"

#include <vector>

#include "base/float_convert.h"
#include "ref/kv_source.h"
#include "ref/quantize.h"

namespace longdecode::ref {
namespace {

int64_t offset_of(const TensorView& view, int64_t i, int64_t j, int64_t k) {
  const int64_t index[3] = {i, j, k};
  int64_t offset = 0;
  for (int32_t d = 0; d < 3; ++d) {
    if (view.shape[d] != 1) offset += index[d] * view.stride[d];
  }
  return offset;
}

void copy_row(const TensorView& from, int64_t from_offset, const TensorView& to, int64_t to_offset,
              int32_t count) {
  for (int32_t c = 0; c < count; ++c) {
    store_element(to.data, to.dtype, to_offset + c,
                  load_element(from.data, from.dtype, from_offset + c));
  }
}

void quantize_from_ring(const AppendArgs& args, int32_t batch_idx, int64_t page_idx) {
  const KvLayerView& kv = args.kv;
  const KvFormat& format = kv.format;
  const int32_t page = args.batch.block_table[batch_idx * args.batch.block_table_stride + page_idx];
  std::vector<double> keys(static_cast<size_t>(format.page_size * format.key_dim));
  for (int32_t h = 0; h < format.num_kv_heads; ++h) {
    for (int32_t i = 0; i < format.page_size; ++i) {
      const int64_t token = page_idx * format.page_size + i;
      const int64_t from = offset_of(kv.recent_k, args.batch.slots[batch_idx], h,
                                     token % format.recent_ring_tokens());
      for (int32_t c = 0; c < format.key_dim; ++c) {
        keys[static_cast<size_t>(i * format.key_dim + c)] =
            static_cast<double>(load_element(kv.recent_k.data, kv.recent_k.dtype, from + c));
      }
    }
    quantize_page(
        format, keys.data(),
        kv.chunks + page * kv.chunk_page_stride_bytes + h * format.chunk_bytes(),
        kv.residuals + page * kv.residual_page_stride_bytes + h * format.residual_bytes());
  }
}

void append_token(const AppendArgs& args, int32_t batch_idx, int64_t new_idx, int64_t token) {
  const KvLayerView& kv = args.kv;
  const KvFormat& format = kv.format;
  const int64_t page =
      args.batch.block_table[batch_idx * args.batch.block_table_stride + token / format.page_size];
  const bool two_plane = format.keys == KeyEncoding::kTwoPlane;
  for (int32_t h = 0; h < format.num_kv_heads; ++h) {
    const int64_t in_page = token % format.page_size;
    const int64_t k_to = two_plane ? offset_of(kv.recent_k, args.batch.slots[batch_idx], h,
                                               token % format.recent_ring_tokens())
                                   : offset_of(kv.k, page, h, in_page);
    copy_row(args.k, offset_of(args.k, batch_idx, new_idx, h), two_plane ? kv.recent_k : kv.k, k_to,
             format.key_dim);
    if (format.op == Op::kMla) continue;
    copy_row(args.v, offset_of(args.v, batch_idx, new_idx, h), kv.v,
             offset_of(kv.v, page, h, in_page), format.value_dim);
  }
  if (!two_plane) return;
  const int64_t due = format.num_quantized_pages(token + 1);
  if (due > format.num_quantized_pages(token)) quantize_from_ring(args, batch_idx, due - 1);
}

}  // namespace

void append(const AppendArgs& args) {
  for (int32_t b = 0; b < args.batch.batch; ++b) {
    const int64_t num_new =
        args.batch.query_lens != nullptr ? args.batch.query_lens[b] : args.k.shape[1];
    for (int64_t i = 0; i < num_new; ++i) {
      append_token(args, b, i, args.batch.kv_lens[b] - num_new + i);
    }
  }
}

}  // namespace longdecode::ref
