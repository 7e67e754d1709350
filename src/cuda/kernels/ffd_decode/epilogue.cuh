// The end of an item, by the warps that scan: the states of those that attend joined, then the
// final result of a sequence that is not split, else a partial result. The CTA of an item's last
// split merges the others, in their order, while its own last tiles are attended.
//
// A partial: [rows][dim] sums of weighted values, (max in log2 units, sum) of every row, and
// (number of hits, 0): 32-bit words that are kEmptyWord between runs. A word is data and flag at
// once, so no fence orders them and no counter counts them: the merging CTA reads until none is
// empty, and leaves them empty; a word is read and emptied by one thread. It only waits for CTAs of
// a lower index, which are launched before it.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_EPILOGUE_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_EPILOGUE_CUH_

#include "cuda/kernels/ffd_decode/attend.cuh"
#include "cuda/kernels/ffd_decode/rounds.cuh"

namespace longdecode::cuda::ffd {

// What the threads of a CTA know about their item.
template <class C>
struct ItemContext {
  Item item;
  Spans spans;
  int num_rows = 0;  // query_len of the tensors * group, all row blocks
  int num_hits = 0;  // tiles; of this split, then of all

  __device__ __forceinline__ int row_of(int local) const { return item.row_block * 8 + local; }
  // Rows of ragged sequences' missing query tokens do not count.
  __device__ __forceinline__ int num_real_rows(const Params& p) const {
    return spans.query_len * p.group;
  }
};

// What a CTA has done before the item.
struct ItemCounts {
  int num_items = 0, num_rounds = 0;
};

struct OutputRow {
  int64_t index;  // in [batch, query_len, num_q_heads]
  uint16_t* g_o;

  __device__ __forceinline__ OutputRow(const Params& p, const Item& item, int row) {
    const int token = token_of(p, row);
    const int head = item.kv_head * p.group + row - token * p.group;
    const int64_t sequence = item.sequence;
    index = (sequence * p.query_len + token) * p.num_q_heads + head;
    g_o = p.g_o + sequence * p.o_batch_stride + token * p.o_token_stride + head * p.o_head_stride;
  }
};

inline constexpr uint32_t kEmptyWord = 0xffffffffu;

// Dims dim, dim + 1 of a row.
template <bool kIsF16>
__device__ __forceinline__ void store_output(uint16_t* g_to, float2 value) {
  *reinterpret_cast<uint32_t*>(g_to) = ptx::pack_pair<kIsF16>(value.x, value.y);
}

// By one thread per row of the block, with the row's final maximum (log2 units) and sum.
template <class C>
__device__ __forceinline__ void store_row(const Params& p, const ItemContext<C>& context,
                                          const typename C::SharedStorage& s, int row,
                                          float row_max, float row_sum) {
  const OutputRow output(p, context.item, row);
  // A row that has seen NaN has a sum that is NaN, whatever its maximum.
  const float lse = natural_lse(row_max, row_sum);
  if (p.g_lse != nullptr) p.g_lse[output.index] = lse;
  const bool is_real = row < context.num_real_rows(p);
  const float pseudo_max =
      is_real && !p.is_dense ? pseudo_max_of<C>(s, row) * p.softmax_scale : -INFINITY;
  if (p.g_pseudo_max != nullptr) p.g_pseudo_max[output.index] = pseudo_max;
  if (p.g_dropped_mass_bound != nullptr) {
    const int dropped = (context.spans.num_scanned() - context.num_hits) * kTileTokens;
    p.g_dropped_mass_bound[output.index] =
        is_real && dropped > 0 ? dropped * expf(pseudo_max - p.delta - lse) : 0.0f;
  }
}

// By one thread per (sequence, kv head); the formulas of src/cpu/ffd_finish.cc. Every quantised
// page is read: its tiles are scanned or always attended.
template <class C>
__device__ __forceinline__ void store_statistics(const Params& p, const ItemContext<C>& context) {
  const Spans& spans = context.spans;
  const int64_t head =
      static_cast<int64_t>(context.item.sequence) * p.num_kv_heads + context.item.kv_head;
  const int64_t hits = context.num_hits;
  if (p.g_tokens_scanned != nullptr) {
    p.g_tokens_scanned[head] = p.attends_all ? 0 : spans.num_scanned() * int64_t{kTileTokens};
  }
  // The last tile may be short; it is always attended.
  const int64_t attended =
      spans.is_empty() ? 0
                       : (hits + spans.num_always() - spans.num_tiles) * kTileTokens + spans.kv_len;
  if (p.g_tokens_attended != nullptr) p.g_tokens_attended[head] = attended;
  if (p.g_bytes_read == nullptr) return;
  const int64_t unquantized = spans.kv_len - spans.num_quantized;
  const int64_t pages = spans.num_quantized >> p.page_shift;
  p.g_bytes_read[head] = pages * p.chunk_bytes + (attended - unquantized) * C::kDim +
                         (attended + unquantized) * 2 * C::kDim;
}

// Rows that see nothing at all.
template <class C>
__device__ __forceinline__ void store_empty(const Params& p, const ItemContext<C>& context,
                                            const typename C::SharedStorage& s) {
  for (int i = 2 * ptx::thread_index(); i < C::kRows * C::kDim; i += 2 * C::kThreads) {
    const int row = context.row_of(i / C::kDim), dim = i % C::kDim;
    if (row >= context.num_rows) continue;
    store_output<C::kIsF16>(OutputRow(p, context.item, row).g_o + dim, make_float2(0.0f, 0.0f));
    if (dim == 0) store_row<C>(p, context, s, row, -INFINITY, 0.0f);
  }
  if (ptx::thread_index() == 0 && context.item.row_block == 0) store_statistics<C>(p, context);
}

// The warp's values to its slots, [8 rows][dim] floats, and its (max, sum) to s.warp_sums.
template <class C>
__device__ __forceinline__ void store_state(const RowState<C>& state, uint32_t s_slots,
                                            typename C::SharedStorage& s, int warp, int lane) {
  const int g = lane >> 2, t = lane & 3;
  const float sum_0 = sum_over_tokens(state.sum_0), sum_1 = sum_over_tokens(state.sum_1);
  if (g == 0) {
    s.warp_sums[warp][2 * t] = make_float2(state.max_0, sum_0);
    s.warp_sums[warp][2 * t + 1] = make_float2(state.max_1, sum_1);
  }
  if (2 * t >= C::kRows) return;
  const uint32_t s_row = s_slots + 2 * t * (4 * C::kDim);
#pragma unroll
  for (int m = 0; m < C::kMBlocks; m += 2) {  // x = m, m + 1 are neighbouring dims
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const uint32_t s_to = s_row + 4 * C::dim_of(m + upper * C::kMBlocks, g);
      ptx::store_shared(s_to, make_float2(state.o[m][2 * upper], state.o[m + 1][2 * upper]));
      ptx::store_shared(s_to + 4 * C::kDim,
                        make_float2(state.o[m][2 * upper + 1], state.o[m + 1][2 * upper + 1]));
    }
  }
}

// A maximum (log2 units), a sum and values weighted alike: two dims of a row.
struct Merged {
  float max = -INFINITY, sum = 0.0f;
  float2 value = make_float2(0.0f, 0.0f);
};

// The values of the warps that attend, [8 rows][dim] each, from `element` on, joined.
template <class C>
__device__ __forceinline__ Merged join_warps(const typename C::SharedStorage& s, uint32_t s_slots,
                                             int row, int element) {
  Merged merged;
#pragma unroll
  for (int w = 0; w < C::kAttendWarps; ++w) merged.max = fmaxf(merged.max, s.warp_sums[w][row].x);
#pragma unroll
  for (int w = 0; w < C::kAttendWarps; ++w) {
    const float2 sums = s.warp_sums[w][row];
    const float2 part = shared_float2(s_slots + w * (kSlots * C::kSlotBytes) + 4 * element);
    const float weight = part_weight(sums.x, merged.max);
    merged.sum = fmaf(weight, sums.y, merged.sum);
    merged.value.x = fmaf(weight, part.x, merged.value.x);
    merged.value.y = fmaf(weight, part.y, merged.value.y);
  }
  return merged;
}

__device__ __forceinline__ void store_words(float* g_to, float2 value) {
  ptx::store_relaxed(g_to, value.x == value.x ? value.x : __uint_as_float(0x7fffffffu),
                     value.y == value.y ? value.y : __uint_as_float(0x7fffffffu));
}
__device__ __forceinline__ bool is_empty(float2 words) {
  return __float_as_uint(words.x) == kEmptyWord || __float_as_uint(words.y) == kEmptyWord;
}

// Weights of kMergeSplits splits from first_split on and of what is merged so far, by groups of
// kMergeSplits lanes, a row each; the group after the last row adds up hits. `total` is a group's
// alone: (max, sum) of its row so far.
template <class C>
__device__ __forceinline__ void weigh_splits(typename C::SharedStorage& s, float* g_first,
                                             int first_split, int count, int thread,
                                             float2& total) {
  constexpr int kSplits = C::kMergeSplits;
  const int row = thread / kSplits, k = thread % kSplits, split = first_split + k;
  float* g_part = g_first + split * int64_t{C::kPartialFloats} + C::kRows * C::kDim + 2 * row;
  float2 part = make_float2(row == C::kRows ? 0.0f : -INFINITY, 0.0f);
  if (split < count && row <= C::kRows) {
    do {
      part = ptx::load_relaxed(g_part);
    } while (is_empty(part));
    ptx::store_relaxed(g_part, __uint_as_float(kEmptyWord), __uint_as_float(kEmptyWord));
  }
  __syncwarp();
  float row_max = part.x;
#pragma unroll
  for (int step = 1; step < kSplits; step *= 2) {
    row_max = fmaxf(row_max, __shfl_xor_sync(kFullWarp, row_max, step));
  }
  row_max = fmaxf(row_max, total.x);
  const float weight = part_weight(part.x, row_max), rescale = part_weight(total.x, row_max);
  int hits = __float_as_int(part.x);
  float sum = weight * part.y;
#pragma unroll
  for (int step = 1; step < kSplits; step *= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, step);
    hits += __shfl_xor_sync(kFullWarp, hits, step);
  }
  total = make_float2(row_max, fmaf(total.y, rescale, sum));
  if (row < C::kRows) {
    s.weights[row][k] = weight;
    if (k == 0) s.rescale[row] = rescale, s.totals[row] = total;
  } else if (row == C::kRows && k == 0) {
    s.other_hits = hits + (first_split == 0 ? 0 : s.other_hits);
  }
}

// A thread's elements of `count` splits, at most kMergeSplits, once they are there, the first one's
// at g_element; zeros beyond. What was read is empty again.
template <class C>
__device__ __forceinline__ void take_splits(float* g_element, int count,
                                            float2 (&v)[C::kMergeSplits]) {
  const float empty = __uint_as_float(kEmptyWord);
#pragma unroll
  for (int k = 0; k < C::kMergeSplits; ++k) {
    if (k < count) v[k] = make_float2(empty, empty);
  }
  bool waits = true;
#pragma unroll 1
  while (waits) {
    waits = false;
#pragma unroll
    for (int k = 0; k < C::kMergeSplits; ++k) {
      ptx::load_relaxed_if(is_empty(v[k]), g_element + k * C::kPartialFloats, v[k]);
    }
#pragma unroll
    for (int k = 0; k < C::kMergeSplits; ++k) waits |= is_empty(v[k]);
  }
#pragma unroll
  for (int k = 0; k < C::kMergeSplits; ++k) {
    if (k < count) ptx::store_relaxed(g_element + k * C::kPartialFloats, empty, empty);
  }
}

// Two elements of the final result; one thread of a row also writes what a row has once.
template <class C>
__device__ __forceinline__ void store_final(const Params& p, const ItemContext<C>& context,
                                            const typename C::SharedStorage& s, int local, int dim,
                                            Merged merged) {
  const int row = context.row_of(local);
  if (row >= context.num_rows) return;
  // The query tokens that a ragged sequence lacks have weights, but see nothing.
  if (row >= context.num_real_rows(p)) merged = Merged();
  const bool is_seen = merged.sum != 0.0f;
  const float2 value = make_float2(is_seen ? __fdividef(merged.value.x, merged.sum) : 0.0f,
                                   is_seen ? __fdividef(merged.value.y, merged.sum) : 0.0f);
  store_output<C::kIsF16>(OutputRow(p, context.item, row).g_o + dim, value);
  if (dim == 0) store_row<C>(p, context, s, row, merged.max, merged.sum);
}

// The thread's pair i of elements.
template <class C>
__device__ __forceinline__ int merge_element(int i) {
  return 2 * (ptx::thread_index() + i * C::kScanThreads);
}

// The splits before the last one, in order; their maxima and sums are in s.totals.
template <class C>
__device__ __forceinline__ void merge_splits(typename C::SharedStorage& s, float* g_first,
                                             int count, float2 (&values)[C::kMergePairs]) {
  constexpr int kElements = C::kRows * C::kDim;
  constexpr int kWeighers = ((C::kRows + 1) * C::kMergeSplits + 31) / 32 * 32;
  static_assert(kWeighers <= C::kScanThreads);
  float2 total = make_float2(-INFINITY, 0.0f);
#pragma unroll 1
  for (int first = 0; first < count; first += C::kMergeSplits) {
    if (first > 0) ptx::named_barrier_sync(kScanBarrier, C::kScanThreads);  // weights are read
    if (ptx::thread_index() < kWeighers) {
      weigh_splits<C>(s, g_first, first, count, ptx::thread_index(), total);
    }
    float2 v[C::kMergePairs][C::kMergeSplits] = {};
#pragma unroll
    for (int i = 0; i < C::kMergePairs; ++i) {
      const int element = merge_element<C>(i);
      float* g_element = g_first + first * int64_t{C::kPartialFloats} + element;
      if (element < kElements) take_splits<C>(g_element, count - first, v[i]);
    }
    ptx::named_barrier_sync(kScanBarrier, C::kScanThreads);  // the weights are there
#pragma unroll
    for (int i = 0; i < C::kMergePairs; ++i) {
      const int row = min(merge_element<C>(i) / C::kDim, C::kRows - 1);
      values[i].x *= s.rescale[row], values[i].y *= s.rescale[row];
#pragma unroll
      for (int k = 0; k < C::kMergeSplits; ++k) {
        values[i].x = fmaf(s.weights[row][k], v[i][k].x, values[i].x);
        values[i].y = fmaf(s.weights[row][k], v[i][k].y, values[i].y);
      }
    }
  }
}

// Both, weighted alike.
__device__ __forceinline__ Merged merge_two(const Merged& a, const Merged& b) {
  Merged merged;
  merged.max = fmaxf(a.max, b.max);
  const float of_a = part_weight(a.max, merged.max), of_b = part_weight(b.max, merged.max);
  merged.sum = fmaf(of_a, a.sum, of_b * b.sum);
  merged.value.x = fmaf(of_a, a.value.x, of_b * b.value.x);
  merged.value.y = fmaf(of_a, a.value.y, of_b * b.value.y);
  return merged;
}

// Of a split that is not the last one.
template <class C>
__device__ __forceinline__ void store_partial(float* g_own, int element, const Merged& own) {
  store_words(g_own + element, own.value);
  if (element % C::kDim == 0) {
    store_words(g_own + C::kRows * C::kDim + 2 * (element / C::kDim),
                make_float2(own.max, own.sum));
  }
}

// By the warps that scan, after their last page. item_parity: of the barrier of the states of those
// that attend.
template <class C>
__device__ __forceinline__ void finish_item(const Params& p, ItemContext<C>& context,
                                            typename C::SharedStorage& s, uint32_t s_base,
                                            uint32_t item_parity) {
  const Item& item = context.item;
  const int others = item.num_splits - 1;
  const bool is_last = item.split == others;
  float* g_first = p.g_partials + item.first_slot * int64_t{C::kPartialFloats};
  float* g_own = g_first + item.split * int64_t{C::kPartialFloats};
  float2 values[C::kMergePairs] = {};
  if (is_last && others > 0) merge_splits<C>(s, g_first, others, values);
  ptx::mbarrier_wait(ptx::shared_address(&s.states_full), item_parity);
  context.num_hits = s.num_hits + (is_last && others > 0 ? s.other_hits : 0);
#pragma unroll
  for (int i = 0; i < C::kMergePairs; ++i) {
    const int element = merge_element<C>(i), row = element / C::kDim;
    if (element >= C::kRows * C::kDim) continue;
    const Merged own = join_warps<C>(s, s_base + C::kSlotsOffset, row, element);
    if (!is_last) {
      store_partial<C>(g_own, element, own);
    } else if (others == 0) {
      store_final<C>(p, context, s, row, element % C::kDim, own);
    } else {
      const Merged other{s.totals[row].x, s.totals[row].y, values[i]};
      store_final<C>(p, context, s, row, element % C::kDim, merge_two(own, other));
    }
  }
  if (!is_last) {
    if (ptx::thread_index() == 0) {
      ptx::store_relaxed(g_own + C::kRows * C::kDim + 2 * C::kRows,
                         __int_as_float(context.num_hits), 0.0f);
    }
    return;
  }
  if (ptx::thread_index() == 0 && item.row_block == 0) store_statistics<C>(p, context);
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_EPILOGUE_CUH_
