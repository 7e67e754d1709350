#include "ref/kv_source.h"

#include "base/float_convert.h"
#include "ref/quantize.h"

namespace longdecode::ref {
namespace {

// Element (i, h, r, 0) onwards of a rank-4 view; a size-1 dimension's stride is ignored.
void read_row(const TensorView& view, int64_t i, int64_t h, int64_t r, int32_t count, double* row) {
  const int64_t index[3] = {i, h, r};
  int64_t offset = 0;
  for (int32_t d = 0; d < 3; ++d) {
    if (view.shape[d] != 1) offset += index[d] * view.stride[d];
  }
  for (int32_t c = 0; c < count; ++c) {
    row[c] = static_cast<double>(load_element(view.data, view.dtype, offset + c));
  }
}

}  // namespace

std::vector<double> read_tensor(const TensorView& view) {
  int64_t count = 1;
  for (int32_t d = 0; d < view.rank; ++d) count *= view.shape[d];
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (int32_t d = view.rank - 1; d >= 0; --d) {
      if (view.shape[d] != 1) offset += rest % view.shape[d] * view.stride[d];
      rest /= view.shape[d];
    }
    values[static_cast<size_t>(i)] =
        static_cast<double>(load_element(view.data, view.dtype, offset));
  }
  return values;
}

void ArraySource::key(int32_t kv_head, int64_t token, double* row) const {
  const float* from = k_ + (token * num_kv_heads_ + kv_head) * key_dim_;
  for (int32_t c = 0; c < key_dim_; ++c) row[c] = static_cast<double>(from[c]);
}

void ArraySource::value(int32_t kv_head, int64_t token, double* row) const {
  const int64_t row_idx = token * num_kv_heads_ + kv_head;
  const float* from = v_ != nullptr ? v_ + row_idx * value_dim_ : k_ + row_idx * key_dim_;
  for (int32_t c = 0; c < value_dim_; ++c) row[c] = static_cast<double>(from[c]);
}

PagedSource::PagedSource(const KvLayerView& kv, const BatchView& batch, int32_t batch_idx)
    : kv_(kv),
      block_table_(batch.block_table + batch_idx * batch.block_table_stride),
      kv_len_(batch.kv_lens[batch_idx]) {
  if (kv.format.keys == KeyEncoding::kTwoPlane) {
    num_quantized_tokens_ = kv.format.num_quantized_pages(kv_len_) * kv.format.page_size;
    slot_ = batch.slots[batch_idx];
  }
}

int64_t PagedSource::page_id(int64_t token) const {
  return block_table_[token / kv_.format.page_size];
}

const uint8_t* PagedSource::chunk(int32_t kv_head, int64_t token) const {
  return kv_.chunks + page_id(token) * kv_.chunk_page_stride_bytes +
         kv_head * kv_.format.chunk_bytes();
}

void PagedSource::key(int32_t kv_head, int64_t token, double* row) const {
  const KvFormat& format = kv_.format;
  const auto in_page = static_cast<int32_t>(token % format.page_size);
  if (format.keys == KeyEncoding::kPlain) {
    read_row(kv_.k, page_id(token), kv_head, in_page, format.key_dim, row);
    return;
  }
  if (token >= num_quantized_tokens_) {
    read_row(kv_.recent_k, slot_, kv_head, token % format.recent_ring_tokens(), format.key_dim,
             row);
    return;
  }
  const uint8_t* codes = chunk(kv_head, token);
  const uint8_t* residuals = kv_.residuals + page_id(token) * kv_.residual_page_stride_bytes +
                             kv_head * format.residual_bytes();
  for (int32_t c = 0; c < format.key_dim; ++c) {
    row[c] = exact_value(read_grid(format, codes, c), read_code(format, codes, in_page, c),
                         residuals[format.residual_offset_bytes(in_page, c)]);
  }
}

void PagedSource::value(int32_t kv_head, int64_t token, double* row) const {
  const TensorView& view = kv_.format.op == Op::kMla ? kv_.k : kv_.v;
  read_row(view, page_id(token), kv_head, token % kv_.format.page_size, kv_.format.value_dim, row);
}

void PagedSource::scan_key(int32_t kv_head, int64_t token, double* row) const {
  const uint8_t* codes = chunk(kv_head, token);
  const auto in_page = static_cast<int32_t>(token % kv_.format.page_size);
  for (int32_t c = 0; c < kv_.format.key_dim; ++c) {
    row[c] = scan_value(read_grid(kv_.format, codes, c), read_code(kv_.format, codes, in_page, c));
  }
}

void PagedSource::steps(int32_t kv_head, int64_t token, double* row) const {
  const uint8_t* codes = chunk(kv_head, token);
  for (int32_t c = 0; c < kv_.format.key_dim; ++c) {
    row[c] = read_grid(kv_.format, codes, c).step;
  }
}

}  // namespace longdecode::ref
