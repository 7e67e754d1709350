#include "tests/support/paged_problem.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <random>

#include "base/float_convert.h"
#include "ref/quantize.h"

namespace longdecode::testing {
namespace {

constexpr int32_t kGarbageIds[] = {2147480000, -1, INT_MIN};
constexpr int64_t kHighIdBase = 70000;  // above 2^16
constexpr int64_t kUnitStride = 12344;  // of a size-1 dimension: never to be used

int64_t row_offset(const TensorView& view, int64_t i, int64_t j, int64_t k) {
  const int64_t index[3] = {i, j, k};
  int64_t offset = 0;
  for (int32_t d = 0; d < 3; ++d) {
    if (view.shape[d] != 1) offset += index[d] * view.stride[d];
  }
  return offset;
}

void store_row(const TensorView& view, int64_t offset, const float* from, int32_t count) {
  for (int32_t c = 0; c < count; ++c) store_element(view.data, view.dtype, offset + c, from[c]);
}

void spoil_unit_strides(TensorView* view) {
  for (int32_t d = 0; d + 1 < view->rank; ++d) {
    if (view->shape[d] == 1) view->stride[d] = kUnitStride + d;
  }
}

int32_t* copy_ints(const std::vector<int32_t>& from, GuardedBuffer* to) {
  *to = GuardedBuffer(static_cast<int64_t>(from.size()) * 4);
  std::memcpy(to->data(), from.data(), from.size() * 4);
  return to->data<int32_t>();
}

}  // namespace

Pool::Pool(int64_t num_bytes, bool sparse) {
  if (sparse) {
    sparse_ = std::make_unique<SparseMemory>(num_bytes);
  } else {
    dense_ = GuardedBuffer(num_bytes);
  }
}

PagedProblem::PagedProblem(const ProblemSpec& spec)
    : spec_(spec), desc_(resolved_desc(spec)), sequences_(make_sequences(spec)) {
  args_.query_len = spec.query_len;
  args_.kv.format = desc_.format;
  args_.batch.batch = static_cast<int32_t>(spec.kv_lens.size());
  assign_pages();
  args_.kv.num_pages = num_pages_;
  make_plain_pools();
  if (desc_.format.keys == KeyEncoding::kTwoPlane) make_two_plane_pools();
  make_queries();
  if (spec.page_order == PageOrder::kHighIds) {
    // A sparse pool reads as zeros: poison what the sequences' pages touch and their neighbours.
    for (const std::vector<int32_t>& pages : pages_) {
      for (const int32_t page : pages) {
        for (const int32_t neighbour : {page - 1, page, page + 1}) poison_page(neighbour);
      }
    }
  }
  for (int32_t b = 0; b < batch(); ++b) store_sequence(b);
  fingerprint_ = fingerprint();
}

void PagedProblem::assign_pages() {
  const int32_t page_size = desc_.format.page_size;
  int64_t needed = 0;
  int64_t longest = 0;
  for (const int32_t kv_len : spec_.kv_lens) {
    const int64_t count = (int64_t{kv_len} + page_size - 1) / page_size;
    needed += count;
    longest = std::max(longest, count);
  }
  // About as many pages that belong to nobody as pages in use.
  std::vector<int32_t> ids(static_cast<size_t>(2 * needed + 3));
  std::iota(ids.begin(), ids.end(), 0);
  num_pages_ = static_cast<int64_t>(ids.size());
  if (spec_.page_order == PageOrder::kDescending) std::reverse(ids.begin(), ids.end());
  if (spec_.page_order == PageOrder::kScattered || spec_.page_order == PageOrder::kHighIds) {
    std::mt19937 rng(spec_.seed);
    std::shuffle(ids.begin(), ids.end(), rng);
  }
  if (spec_.page_order == PageOrder::kHighIds) {
    for (int32_t& id : ids) id += static_cast<int32_t>(kHighIdBase);
    num_pages_ += kHighIdBase + 1;
  }
  const int64_t table_stride = longest + 5;
  std::vector<int32_t> table(static_cast<size_t>(table_stride * batch()));
  for (size_t i = 0; i < table.size(); ++i) table[i] = kGarbageIds[i % 3];
  size_t next = 0;
  for (int32_t b = 0; b < batch(); ++b) {
    const int64_t count =
        (int64_t{spec_.kv_lens[static_cast<size_t>(b)]} + page_size - 1) / page_size;
    pages_.emplace_back();
    for (int64_t p = 0; p < count; ++p) {
      const bool shared = b > 0 && p < spec_.shared_pages;
      pages_.back().push_back(shared ? pages_[0][static_cast<size_t>(p)] : ids[next++]);
      table[static_cast<size_t>(b * table_stride + p)] = pages_.back().back();
    }
  }
  args_.batch.block_table = copy_ints(table, &table_);
  args_.batch.block_table_stride = table_stride;
  args_.batch.kv_lens = copy_ints(spec_.kv_lens, &kv_lens_);
  if (!spec_.query_lens.empty()) {
    args_.batch.query_lens = copy_ints(spec_.query_lens, &query_lens_);
  }
}

void PagedProblem::make_plain_pools() {
  const KvFormat& f = desc_.format;
  const bool sparse = spec_.page_order == PageOrder::kHighIds;
  const bool plain = f.keys == KeyEncoding::kPlain;
  const bool has_v = f.op == Op::kGqa;
  const bool interleaved = spec_.layout == PoolLayout::kInterleaved && plain && has_v;
  const int64_t page_elements = int64_t{f.num_kv_heads} * f.page_size * f.key_dim;
  const int64_t bytes = num_pages_ * page_elements * dtype_bytes(f.dtype);
  const auto view_of = [&](uint8_t* data) {
    TensorView view =
        TensorView::contiguous(data, f.dtype, {num_pages_, f.num_kv_heads, f.page_size, f.key_dim});
    if (spec_.layout == PoolLayout::kNhd) {
      view.stride[1] = f.key_dim;
      view.stride[2] = int64_t{f.num_kv_heads} * f.key_dim;
    }
    if (interleaved) view.stride[0] = 2 * page_elements;
    if (spec_.garbage_unit_strides) spoil_unit_strides(&view);
    return view;
  };
  if (plain) {
    k_pool_ = Pool(interleaved ? 2 * bytes : bytes, sparse);
    args_.kv.k = view_of(k_pool_.data());
  }
  if (!has_v) return;
  if (interleaved) {
    args_.kv.v = view_of(k_pool_.data() + page_elements * dtype_bytes(f.dtype));
    return;
  }
  v_pool_ = Pool(bytes, sparse);
  args_.kv.v = view_of(v_pool_.data());
}

void PagedProblem::make_two_plane_pools() {
  const KvFormat& f = desc_.format;
  const bool sparse = spec_.page_order == PageOrder::kHighIds;
  // Gaps between pages: the page strides are free.
  args_.kv.chunk_page_stride_bytes = f.num_kv_heads * f.chunk_bytes() + 64;
  args_.kv.residual_page_stride_bytes = f.num_kv_heads * f.residual_bytes() + 128;
  chunk_pool_ = Pool(num_pages_ * args_.kv.chunk_page_stride_bytes, sparse);
  residual_pool_ = Pool(num_pages_ * args_.kv.residual_page_stride_bytes, sparse);
  args_.kv.chunks = chunk_pool_.data();
  args_.kv.residuals = residual_pool_.data();
  const int64_t num_slots = batch() + 2;
  ring_ = GuardedBuffer(num_slots * f.num_kv_heads * f.recent_ring_tokens() * f.key_dim *
                        dtype_bytes(f.dtype));
  args_.kv.recent_k = TensorView::contiguous(
      ring_.data(), f.dtype, {num_slots, f.num_kv_heads, f.recent_ring_tokens(), f.key_dim});
  if (spec_.garbage_unit_strides) spoil_unit_strides(&args_.kv.recent_k);
  std::vector<int32_t> slots;
  for (int32_t b = 0; b < batch(); ++b) slots.push_back(batch() - b);
  args_.batch.slots = copy_ints(slots, &slots_);
}

void PagedProblem::make_queries() {
  const int64_t gap = spec_.strided_q ? 16 : 0;
  const int64_t dim = desc_.format.key_dim;
  const int64_t heads = desc_.num_q_heads;
  TensorView view;
  view.dtype = desc_.q_dtype;
  view.rank = 4;
  const int64_t shape[4] = {batch(), spec_.query_len, heads, dim};
  std::copy_n(shape, 4, view.shape);
  view.stride[3] = 1;
  view.stride[2] = dim + gap;
  view.stride[1] = heads * view.stride[2] + gap;
  view.stride[0] = spec_.query_len * view.stride[1] + 2 * gap;
  q_ = GuardedBuffer(batch() * view.stride[0] * dtype_bytes(view.dtype));
  view.data = q_.data();
  if (spec_.garbage_unit_strides) spoil_unit_strides(&view);
  args_.q = view;
  if (!desc_.learned_sinks) return;
  sink_logits_ = GuardedBuffer(heads * 4);
  for (int64_t h = 0; h < heads; ++h) {
    sink_logits_.data<float>()[h] = spec_.sink_logits.empty()
                                        ? 0.5f * static_cast<float>(h % 7) - 1.0f
                                        : spec_.sink_logits[static_cast<size_t>(h)];
  }
  args_.sink_logits = sink_logits_.data<float>();
}

void PagedProblem::store_sequence(int32_t batch_idx) {
  const KvFormat& f = desc_.format;
  LogicalSequence& s = sequences_[static_cast<size_t>(batch_idx)];
  const std::vector<int32_t>& pages = pages_[static_cast<size_t>(batch_idx)];
  for (int32_t t = 0; t < s.query_len; ++t) {
    for (int32_t h = 0; h < s.num_q_heads; ++h) {
      store_row(args_.q, row_offset(args_.q, batch_idx, t, h), s.query(t, h), f.key_dim);
    }
  }
  if (spec_.empty_pools) return;
  // The tail of the last page: NaN (from the poison) and infinity in turn.
  const std::vector<float> infinity(static_cast<size_t>(f.key_dim),
                                    std::numeric_limits<float>::infinity());
  const int64_t end = static_cast<int64_t>(pages.size()) * f.page_size;
  for (int64_t j = 0; j < end; ++j) {
    if (j >= s.kv_len && j % 2 == 0) continue;
    const int32_t page = pages[static_cast<size_t>(j / f.page_size)];
    for (int32_t h = 0; h < f.num_kv_heads; ++h) {
      const auto store = [&](const TensorView& view, const float* row, int32_t count) {
        store_row(view, row_offset(view, page, h, j % f.page_size),
                  j < s.kv_len ? row : infinity.data(), count);
      };
      const bool real = j < s.kv_len;
      if (f.keys == KeyEncoding::kPlain) store(args_.kv.k, real ? s.key(j, h) : nullptr, f.key_dim);
      if (f.op == Op::kGqa) store(args_.kv.v, real ? s.value(j, h) : nullptr, f.value_dim);
    }
  }
  if (f.keys == KeyEncoding::kTwoPlane) store_planes(batch_idx);
}

void PagedProblem::store_planes(int32_t batch_idx) {
  const KvFormat& f = desc_.format;
  LogicalSequence& s = sequences_[static_cast<size_t>(batch_idx)];
  const int64_t num_quantized = f.num_quantized_pages(s.kv_len);
  std::vector<double> keys(static_cast<size_t>(f.page_size * f.key_dim));
  for (int64_t p = 0; p < num_quantized; ++p) {
    const int64_t page = pages_[static_cast<size_t>(batch_idx)][static_cast<size_t>(p)];
    for (int32_t h = 0; h < f.num_kv_heads; ++h) {
      for (int32_t i = 0; i < f.page_size; ++i) {
        std::copy_n(s.key(p * f.page_size + i, h), f.key_dim, keys.data() + i * f.key_dim);
      }
      ref::quantize_page(
          f, keys.data(),
          args_.kv.chunks + page * args_.kv.chunk_page_stride_bytes + h * f.chunk_bytes(),
          args_.kv.residuals + page * args_.kv.residual_page_stride_bytes + h * f.residual_bytes());
    }
  }
  for (int64_t j = num_quantized * f.page_size; j < s.kv_len; ++j) {
    for (int32_t h = 0; h < f.num_kv_heads; ++h) {
      const TensorView& ring = args_.kv.recent_k;
      store_row(ring, row_offset(ring, args_.batch.slots[batch_idx], h, j % f.recent_ring_tokens()),
                s.key(j, h), f.key_dim);
    }
  }
}

void PagedProblem::poison_page(int32_t page) {
  const KvFormat& f = desc_.format;
  for (const TensorView* view : {&args_.kv.k, &args_.kv.v}) {
    if (view->data == nullptr) continue;
    const int64_t bytes = view->stride[0] * dtype_bytes(f.dtype);
    const int64_t page_bytes =
        int64_t{f.num_kv_heads} * f.page_size * f.key_dim * dtype_bytes(f.dtype);
    std::memset(static_cast<uint8_t*>(view->data) + page * bytes, kPoisonByte,
                static_cast<size_t>(page_bytes));
  }
  if (f.keys != KeyEncoding::kTwoPlane) return;
  std::memset(args_.kv.chunks + page * args_.kv.chunk_page_stride_bytes, kPoisonByte,
              static_cast<size_t>(args_.kv.chunk_page_stride_bytes));
  std::memset(args_.kv.residuals + page * args_.kv.residual_page_stride_bytes, kPoisonByte,
              static_cast<size_t>(args_.kv.residual_page_stride_bytes));
}

uint64_t PagedProblem::pools_fingerprint() const {
  uint64_t hash = 0;
  for (const Pool* pool : {&k_pool_, &v_pool_, &chunk_pool_, &residual_pool_}) {
    hash = hash * 31 + pool->fingerprint();
  }
  return hash;
}

uint64_t PagedProblem::fingerprint() const {
  uint64_t hash = pools_fingerprint();
  for (const GuardedBuffer* buffer :
       {&ring_, &q_, &table_, &kv_lens_, &query_lens_, &slots_, &sink_logits_}) {
    hash = hash * 31 + buffer->fingerprint();
  }
  return hash;
}

bool PagedProblem::canaries_intact() const {
  bool intact = true;
  for (const Pool* pool : {&k_pool_, &v_pool_, &chunk_pool_, &residual_pool_}) {
    intact = intact && pool->canaries_intact();
  }
  for (const GuardedBuffer* buffer :
       {&ring_, &q_, &table_, &kv_lens_, &query_lens_, &slots_, &sink_logits_}) {
    intact = intact && buffer->canaries_intact();
  }
  return intact;
}

std::string PagedProblem::damage() const {
  if (!canaries_intact()) return "the run wrote outside an input buffer; ";
  if (fingerprint() != fingerprint_) return "the run changed an input; ";
  return "";
}

}  // namespace longdecode::testing
