#include "cpu/append.h"

#include <algorithm>
#include <cstring>

#include "base/float_convert.h"
#include "base/integer_math.h"
#include "cpu/paged_rows.h"
#include "cpu/two_plane.h"

namespace longdecode::cpu {
namespace {

// The rows of a head lie apart in the input, too far for the hardware's prefetcher.
constexpr int64_t kRowsAhead = 16;
constexpr int64_t kTokensAtATime = 128;

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

// New tokens of one sequence and one kv head.
class HeadAppender {
 public:
  HeadAppender(const AppendArgs& args, int32_t batch_idx, int32_t head, int64_t num_new)
      : args_(args),
        format_(args.kv.format),
        batch_idx_(batch_idx),
        head_(head),
        first_(args.batch.kv_lens[batch_idx] - num_new),
        pages_(args.batch.block_table + batch_idx * args.batch.block_table_stride) {}

  // Tokens [begin, end), which come after those of the calls before.
  void run(int64_t begin, int64_t end) const {
    if (format_.op == Op::kGqa) put_paged(args_.kv.v, args_.v, begin, end);
    if (format_.keys == KeyEncoding::kTwoPlane) {
      append_two_plane(begin, end);
    } else {
      put_paged(args_.kv.k, args_.k, begin, end);
    }
  }

 private:
  const void* input_row(const TensorView& input, int64_t token) const {
    return row_address(input, batch_idx_, token - first_, head_);
  }
  // Always inline: see ffd_tile_batch.cc. Past the last token it does no harm.
  __attribute__((always_inline)) void prefetch(const TensorView& input, int64_t token) const {
    const char* row = static_cast<const char*>(input_row(input, token));
    const int64_t row_bytes = input.shape[3] * dtype_bytes(input.dtype);
    for (int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(row + i);
  }

  void* paged_row(const TensorView& pool, int64_t token) const {
    return row_address(pool, pages_[token / format_.page_size], head_, token % format_.page_size);
  }

  void put_paged(const TensorView& pool, const TensorView& input, int64_t begin,
                 int64_t end) const {
    const int64_t size = &pool == &args_.kv.v ? format_.value_dim : format_.key_dim;
    const int64_t row_bytes = size * dtype_bytes(pool.dtype);
    for (int64_t token = begin; token < end; ++token) {
      prefetch(input, token + kRowsAhead);
      if (token + kRowsAhead < end) {  // a store of a part of a line waits for the line
        const char* ahead = static_cast<const char*>(paged_row(pool, token + kRowsAhead));
        for (int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(ahead + i, 1);
      }
      convert_row(paged_row(pool, token), pool.dtype, input_row(input, token), input.dtype, size);
    }
  }

  void* ring_row(int64_t token) const {
    return row_address(args_.kv.recent_k, args_.batch.slots[batch_idx_], head_,
                       token % format_.recent_ring_tokens());
  }

  // All keys pass through the ring, in order: a page is quantised as soon as its last token is
  // there, before a later token takes the row of its first.
  void append_two_plane(int64_t begin, int64_t end) const {
    const int64_t due = format_.num_quantized_pages(end);
    int64_t next = begin;
    for (int64_t page = format_.num_quantized_pages(begin); page < due; ++page) {
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
    put_recent(next, end);
  }

  // Returns the next token to put: `stop`, or `next` when that is already past it.
  int64_t put_recent(int64_t next, int64_t stop) const {
    for (; next < stop; ++next) {
      prefetch(args_.k, next + kRowsAhead);
      convert_row(ring_row(next), format_.dtype, input_row(args_.k, next), args_.k.dtype,
                  format_.key_dim);
    }
    return next;
  }

  const AppendArgs& args_;
  const KvFormat& format_;
  int32_t batch_idx_;
  int32_t head_;
  int64_t first_;  // new token
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
  const int32_t num_threads = elements < kMinParallelElements ? 1 : device.num_threads;
  // A task has neighbouring heads and takes kTokensAtATime tokens of each in turn: the rows of the
  // heads are neighbours in the input.
  const int64_t num_heads = format.num_kv_heads;
  const int64_t heads_per_task =
      std::clamp<int64_t>(args.batch.batch * num_heads / num_threads, 1, num_heads);
  const int64_t groups = ceil_div(num_heads, heads_per_task);
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
  for (int64_t task = 0; task < args.batch.batch * groups; ++task) {
    const auto b = static_cast<int32_t>(task / groups);
    const int64_t first_head = task % groups * heads_per_task;
    const int64_t num_new = new_lens ? new_lens[b] : max_new;
    const int64_t kv_len = args.batch.kv_lens[b];
    for (int64_t begin = kv_len - num_new; begin < kv_len; begin += kTokensAtATime) {
      const int64_t end = std::min(begin + kTokensAtATime, kv_len);
      for (int64_t h = first_head; h < std::min(first_head + heads_per_task, num_heads); ++h) {
        HeadAppender(args, b, static_cast<int32_t>(h), num_new).run(begin, end);
      }
    }
  }
}

}  // namespace longdecode::cpu
