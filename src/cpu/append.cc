#include "cpu/append.h"

#include <cstring>

#include "base/float_convert.h"
#include "cpu/paged_rows.h"
#include "cpu/two_plane.h"

namespace longdecode::cpu {
namespace {

// Below this many elements of K the cost of waking the threads is larger than the work.
constexpr int64_t kMinParallelElements = 16384;

template <DType kDType>
struct Element;
template <>
struct Element<DType::kF32> {
  using Storage = float;
  static float load(float x) { return x; }
  static float store(float x) { return x; }
};
template <>
struct Element<DType::kF16> {
  using Storage = uint16_t;
  static float load(uint16_t x) { return f16_to_f32(x); }
  static uint16_t store(float x) { return f32_to_f16(x); }
};
template <>
struct Element<DType::kBF16> {
  using Storage = uint16_t;
  static float load(uint16_t x) { return bf16_to_f32(x); }
  static uint16_t store(float x) { return f32_to_bf16(x); }
};

template <DType kTo, DType kFrom>
void convert(void* to, const void* from, int64_t size) {
  auto* out = static_cast<typename Element<kTo>::Storage*>(to);
  const auto* in = static_cast<const typename Element<kFrom>::Storage*>(from);
  for (int64_t i = 0; i < size; ++i) out[i] = Element<kTo>::store(Element<kFrom>::load(in[i]));
}

template <DType kTo>
void convert_from(void* to, const void* from, DType from_dtype, int64_t size) {
  switch (from_dtype) {
    case DType::kF32:
      return convert<kTo, DType::kF32>(to, from, size);
    case DType::kF16:
      return convert<kTo, DType::kF16>(to, from, size);
    case DType::kBF16:
      return convert<kTo, DType::kBF16>(to, from, size);
  }
}

// Rounds to nearest even.
void convert_row(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t size) {
  if (to_dtype == from_dtype) {
    std::memcpy(to, from, static_cast<size_t>(size * dtype_bytes(to_dtype)));
    return;
  }
  switch (to_dtype) {
    case DType::kF32:
      return convert_from<DType::kF32>(to, from, from_dtype, size);
    case DType::kF16:
      return convert_from<DType::kF16>(to, from, from_dtype, size);
    case DType::kBF16:
      return convert_from<DType::kBF16>(to, from, from_dtype, size);
  }
}

// The new tokens of one sequence and one kv head.
class HeadAppender {
 public:
  HeadAppender(const AppendArgs& args, int32_t batch_idx, int32_t head, int64_t num_new)
      : args_(args),
        format_(args.kv.format),
        batch_idx_(batch_idx),
        head_(head),
        end_(args.batch.kv_lens[batch_idx]),
        begin_(end_ - num_new),
        pages_(args.batch.block_table + batch_idx * args.batch.block_table_stride) {}

  void run() const {
    if (format_.op == Op::kGqa) {
      for (int64_t token = begin_; token < end_; ++token) put_paged(args_.kv.v, args_.v, token);
    }
    if (format_.keys == KeyEncoding::kTwoPlane) {
      append_two_plane();
    } else {
      for (int64_t token = begin_; token < end_; ++token) put_paged(args_.kv.k, args_.k, token);
    }
  }

 private:
  void put_paged(const TensorView& pool, const TensorView& input, int64_t token) const {
    void* to =
        row_address(pool, pages_[token / format_.page_size], head_, token % format_.page_size);
    const int64_t size = &pool == &args_.kv.v ? format_.value_dim : format_.key_dim;
    convert_row(to, pool.dtype, row_address(input, batch_idx_, token - begin_, head_), input.dtype,
                size);
  }

  void* ring_row(int64_t token) const {
    return row_address(args_.kv.recent_k, args_.batch.slots[batch_idx_], head_,
                       token % format_.recent_ring_tokens());
  }

  // All keys pass through the ring, in order: a page is quantised as soon as its last token is
  // there, before a later token takes the row of its first.
  void append_two_plane() const {
    const int64_t due = format_.num_quantized_pages(end_);
    int64_t next = begin_;
    for (int64_t page = format_.num_quantized_pages(begin_); page < due; ++page) {
      const int64_t page_begin = page * format_.page_size;
      next = put_recent(next, page_begin + format_.page_size);
      const void* rows[kMaxPlanePageSize];
      for (int32_t i = 0; i < format_.page_size; ++i) rows[i] = ring_row(page_begin + i);
      const KvLayerView& kv = args_.kv;
      quantize_page(
          format_, rows, format_.dtype,
          kv.chunks + pages_[page] * kv.chunk_page_stride_bytes + head_ * format_.chunk_bytes(),
          kv.residuals + pages_[page] * kv.residual_page_stride_bytes +
              head_ * format_.residual_bytes());
    }
    put_recent(next, end_);
  }

  // Returns the next token to put: `stop`, or `next` when that is already past it.
  int64_t put_recent(int64_t next, int64_t stop) const {
    for (; next < stop; ++next) {
      convert_row(ring_row(next), format_.dtype,
                  row_address(args_.k, batch_idx_, next - begin_, head_), args_.k.dtype,
                  format_.key_dim);
    }
    return next;
  }

  const AppendArgs& args_;
  const KvFormat& format_;
  int32_t batch_idx_;
  int32_t head_;
  int64_t end_;
  int64_t begin_;
  const int32_t* pages_;
};

}  // namespace

void append(const AppendArgs& args, const DeviceInfo& device) {
  const KvFormat& format = args.kv.format;
  const int32_t* new_lens = args.batch.query_lens;
  const int64_t max_new = args.k.shape[1];
  int64_t num_tokens = 0;
  for (int32_t b = 0; b < args.batch.batch; ++b) num_tokens += new_lens ? new_lens[b] : max_new;
  const int64_t elements = num_tokens * format.num_kv_heads * format.key_dim;
  const int64_t num_tasks = int64_t{args.batch.batch} * format.num_kv_heads;
  const int32_t num_threads = elements < kMinParallelElements ? 1 : device.num_threads;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
  for (int64_t task = 0; task < num_tasks; ++task) {
    const auto b = static_cast<int32_t>(task / format.num_kv_heads);
    const auto head = static_cast<int32_t>(task % format.num_kv_heads);
    HeadAppender(args, b, head, new_lens ? new_lens[b] : max_new).run();
  }
}

}  // namespace longdecode::cpu
