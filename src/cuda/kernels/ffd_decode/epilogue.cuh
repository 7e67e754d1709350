// The end of an item: the warps' states joined, then the final result of a sequence that is not
// split, else a partial result. The CTA of an item's last split merges all of them, in the order of
// the splits.
//
// A partial: [rows][dim] sums of weighted values, (max in log2 units, sum) of every row, and the
// number of hits: 32-bit words that are kEmptyWord between runs. A word is data and flag at once,
// so no fence orders them and no counter counts them: the merging CTA reads until none is empty,
// and leaves them empty. It only waits for CTAs of a lower index, which are launched before it.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_EPILOGUE_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_EPILOGUE_CUH_

#include "cuda/kernels/ffd_decode/attend.cuh"

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
  constexpr float kLn2 = 0.693147180559945f;
  const OutputRow output(p, context.item, row);
  const float lse = row_max == -INFINITY ? -INFINITY : fmaf(row_max, kLn2, logf(row_sum));
  if (p.g_lse != nullptr) p.g_lse[output.index] = lse;
  const bool is_real = row < context.num_real_rows(p);
  const float pseudo_max = is_real && !p.is_dense ? s.pseudo_max[row] * p.softmax_scale : -INFINITY;
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
  const int64_t chunk_bytes = (int64_t{C::kDim} << p.page_shift) / 4 + 4 * C::kDim;
  p.g_bytes_read[head] = pages * chunk_bytes + (attended - unquantized) * C::kDim +
                         (attended + unquantized) * 2 * C::kDim;
}

// Rows that see nothing at all.
template <class C>
__device__ __forceinline__ void store_empty(const Params& p, const ItemContext<C>& context,
                                            const typename C::SharedStorage& s) {
  for (int i = 2 * threadIdx.x; i < C::kRows * C::kDim; i += 2 * C::kThreads) {
    const int row = context.row_of(i / C::kDim), dim = i % C::kDim;
    if (row >= context.num_rows) continue;
    store_output<C::kIsF16>(OutputRow(p, context.item, row).g_o + dim, make_float2(0.0f, 0.0f));
    if (dim == 0) store_row<C>(p, context, s, row, -INFINITY, 0.0f);
  }
  if (threadIdx.x == 0 && context.item.row_block == 0) store_statistics<C>(p, context);
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

  // Makes the maximum at least x.
  __device__ __forceinline__ void raise(float x) {
    x = fmaxf(x, max);
    const float factor = weight(max, x);
    sum *= factor;
    value.x *= factor, value.y *= factor;
    max = x;
  }
  // A part with its maximum and sum, the maximum at most ours.
  __device__ __forceinline__ void add(float2 part, float2 part_value) {
    const float w = weight(part.x, max);
    sum = fmaf(w, part.y, sum);
    value.x = fmaf(w, part_value.x, value.x);
    value.y = fmaf(w, part_value.y, value.y);
  }
  static __device__ __forceinline__ float weight(float part_max, float reference) {
    return part_max == -INFINITY ? 0.0f : ptx::exp2_approx(part_max - reference);
  }
};

template <class C>
__device__ __forceinline__ Merged join_warps(const typename C::SharedStorage& s, uint32_t s_slots,
                                             int row, int i) {
  Merged merged;
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) merged.max = fmaxf(merged.max, s.warp_sums[w][row].x);
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) {
    merged.add(s.warp_sums[w][row], shared_float2(s_slots + w * (kSlots * C::kSlotBytes) + 4 * i));
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

// Splits whose loads a thread has in flight.
inline constexpr int kMergeLoads = 16;

// Adds splits 0 .. count - 1 to the last one, in order; i: the thread's first element of a partial.
template <class C>
__device__ __forceinline__ void merge_splits(const float* g_first, int count, int row, int i,
                                             Merged& merged) {
#pragma unroll 1
  for (int k0 = 0; k0 < count; k0 += kMergeLoads) {
    float2 v[kMergeLoads], part[kMergeLoads];
    bool waits = true;
#pragma unroll 1
    while (waits) {
      waits = false;
#pragma unroll
      for (int u = 0; u < kMergeLoads; ++u) {
        // The last one again where there is none; it gets no weight.
        const float* g_part = g_first + min(k0 + u, count - 1) * C::kPartialFloats;
        v[u] = ptx::load_relaxed(g_part + i);
        part[u] = ptx::load_relaxed(g_part + C::kRows * C::kDim + 2 * row);
      }
#pragma unroll
      for (int u = 0; u < kMergeLoads; ++u) waits |= is_empty(v[u]) || is_empty(part[u]);
    }
    float largest = part[0].x;
#pragma unroll
    for (int u = 1; u < kMergeLoads; ++u) largest = fmaxf(largest, part[u].x);
    merged.raise(largest);
#pragma unroll
    for (int u = 0; u < kMergeLoads; ++u) {
      merged.add(k0 + u < count ? part[u] : make_float2(-INFINITY, 0.0f), v[u]);
    }
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
  const bool is_seen = merged.max != -INFINITY;
  const float2 value = make_float2(is_seen ? __fdividef(merged.value.x, merged.sum) : 0.0f,
                                   is_seen ? __fdividef(merged.value.y, merged.sum) : 0.0f);
  store_output<C::kIsF16>(OutputRow(p, context.item, row).g_o + dim, value);
  if (dim == 0) store_row<C>(p, context, s, row, merged.max, merged.sum);
}

// Hits of the splits before the last one.
template <class C>
__device__ __forceinline__ int other_hits(const float* g_first, int count) {
  int hits = 0;
  for (int k = 0; k < count; ++k) {
    const float* g_hits = g_first + k * C::kPartialFloats + C::kRows * C::kDim + 2 * C::kRows;
    float2 words = ptx::load_relaxed(g_hits);
    while (is_empty(words)) words = ptx::load_relaxed(g_hits);
    hits += __float_as_int(words.x);
  }
  return hits;
}

// All warps, after their last tile.
template <class C>
__device__ __forceinline__ void finish_item(const Params& p, ItemContext<C>& context,
                                            const RowState<C>& state, typename C::SharedStorage& s,
                                            uint32_t s_slots) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const Item& item = context.item;
  store_state<C>(state, s_slots + warp * (kSlots * C::kSlotBytes), s, warp, lane);
  __syncthreads();
  const int others = item.num_splits - 1;
  const bool is_last = item.split == others;
  float* g_first = p.g_partials + item.first_slot * int64_t{C::kPartialFloats};
  float* g_own = g_first + item.split * C::kPartialFloats;
  if (is_last && others > 0 && p.wants_hits) context.num_hits += other_hits<C>(g_first, others);
#pragma unroll 1
  for (int i = 2 * threadIdx.x; i < C::kRows * C::kDim; i += 2 * C::kThreads) {
    const int local = i / C::kDim, dim = i % C::kDim;
    Merged merged = join_warps<C>(s, s_slots, local, i);
    if (is_last) {
      merge_splits<C>(g_first, others, local, i, merged);
      store_final<C>(p, context, s, local, dim, merged);
      continue;
    }
    store_words(g_own + i, merged.value);
    if (dim == 0) {
      store_words(g_own + C::kRows * C::kDim + 2 * local, make_float2(merged.max, merged.sum));
    }
  }
  if (!is_last) {
    if (threadIdx.x == 0) {
      ptx::store_relaxed(g_own + C::kRows * C::kDim + 2 * C::kRows,
                         __int_as_float(context.num_hits), 0.0f);
    }
    return;
  }
  if (threadIdx.x == 0 && item.row_block == 0) store_statistics<C>(p, context);
  if (others == 0) return;
  __syncthreads();  // everything is read
  uint32_t* g_words = reinterpret_cast<uint32_t*>(g_first);
  for (int i = threadIdx.x; i < others * C::kPartialFloats; i += C::kThreads) {
    g_words[i] = kEmptyWord;
  }
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_EPILOGUE_CUH_
