// Joins the partial results of a split sequence, by the CTAs that computed its splits. A CTA first
// stores the partials of all its splits; then it takes its share of the output rows and waits for
// the others' partials of it. 16 bytes of one are there when they bear the tag of this run: neither
// side needs a fence or a flag. Waiting needs all CTAs to run at the same time: the launch is
// cooperative.
//
// A slice is what one warp holds of one accumulator block: 16 dims x 8 rows, 32 units of each
// partial. The CTA of split k takes slices k, k + num_splits, ... Its warps share a slice if there
// are fewer slices than warps: each takes every warps_per_slice-th split, and they meet in shared
// memory in a fixed order.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_MERGE_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_MERGE_CUH_

#include "cuda/kernels/mla_decode/sm90/epilogue.cuh"

namespace longdecode::cuda::mla_sm90 {

// Running merge of two rows; value = (dim g, row 0), (g, row 1), (g + 8, row 0), (g + 8, row 1).
struct MergeState {
  float max_0 = -INFINITY, max_1 = -INFINITY, sum_0 = 0.0f, sum_1 = 0.0f;
  float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  // Makes max_0, max_1 at least x, y.
  __device__ __forceinline__ void raise(float x, float y) {
    x = fmaxf(x, max_0);
    y = fmaxf(y, max_1);
    const float f0 = part_weight(max_0, x), f1 = part_weight(max_1, y);
    max_0 = x, max_1 = y;
    sum_0 *= f0, sum_1 *= f1;
    value.x *= f0, value.y *= f1, value.z *= f0, value.w *= f1;
  }
  // Adds sums and values relative to x, y, which are at most max_0, max_1.
  __device__ __forceinline__ void add(float x, float y, float sum_x, float sum_y, const float4& v) {
    const float w0 = part_weight(x, max_0), w1 = part_weight(y, max_1);
    sum_0 = fmaf(w0, sum_x, sum_0);
    sum_1 = fmaf(w1, sum_y, sum_1);
    value.x = fmaf(w0, v.x, value.x);
    value.y = fmaf(w1, v.y, value.y);
    value.z = fmaf(w0, v.z, value.z);
    value.w = fmaf(w1, v.w, value.w);
  }
};

// Pauses between polls: ever longer, up to 1/64 of the time waited so far, so as not to disturb
// CTAs that still compute.
class Backoff {
 public:
  __device__ __forceinline__ Backoff() { begin_ = clock64(); }
  __device__ __forceinline__ void pause() const {
    __nanosleep(static_cast<uint32_t>(min((clock64() - begin_) / 128, 1000ll)));
  }

 private:
  long long begin_;
};

// Splits first, first + step, ... of a slice.
template <class C>
__device__ __forceinline__ MergeState merge_slice(const Params& params, uint32_t tag, int row_block,
                                                  const PairSplits& splits, int slice, int first,
                                                  int step, bool in_step, int lane) {
  constexpr int kLoads = C::kMergeLoads;
  const uint4* g_partials = partial_of<C>(params, row_block, 0);
  const int row = 8 * ((slice >> 2) % C::kRowBlocks8) + 2 * (lane & 3);
  const auto offset_of = [&](int k) {  // at most 264 slots of 8256 units
    return partial_slot(splits.first_worker, k) * C::kPartialUnits;
  };
  MergeState state;
  const Backoff backoff;
  if (!in_step && first < splits.num_splits) {
    const uint4* g_first = g_partials + offset_of(first) + C::kSlices * 32 + row;
    while (!__all_sync(kFullWarp, ptx::load_atomic_16(g_first).w == tag)) backoff.pause();
  }
  for (int k0 = first; k0 < splits.num_splits; k0 += kLoads * step) {
    uint4 v[kLoads], stats[kLoads][2];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const uint32_t mark = k0 + u * step < splits.num_splits ? ~tag : tag;
      v[u] = make_uint4(0, 0, 0, mark);
      stats[u][0] = stats[u][1] = make_uint4(__float_as_uint(-INFINITY), 0, 0, mark);
    }
    for (;;) {  // loads again only what was not there
      bool all_there = true;
      asm volatile("" : "+r"(k0));  // addresses are computed again: registers are short
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const uint4* g_partial = g_partials + offset_of(k0 + u * step);
        const uint4* g_stats = g_partial + C::kSlices * 32 + row;
        if (v[u].w != tag) v[u] = ptx::load_atomic_16(g_partial + slice * 32 + lane);
        if (stats[u][0].w != tag) stats[u][0] = ptx::load_atomic_16(g_stats);
        if (stats[u][1].w != tag) stats[u][1] = ptx::load_atomic_16(g_stats + 1);
      }
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        all_there &= v[u].w == tag && stats[u][0].w == tag && stats[u][1].w == tag;
      }
      if (__all_sync(kFullWarp, all_there)) break;
      backoff.pause();
    }
    float x = -INFINITY, y = -INFINITY;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      x = fmaxf(x, __uint_as_float(stats[u][0].x));
      y = fmaxf(y, __uint_as_float(stats[u][1].x));
    }
    state.raise(x, y);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      state.add(__uint_as_float(stats[u][0].x), __uint_as_float(stats[u][1].x),
                __uint_as_float(stats[u][0].y), __uint_as_float(stats[u][1].y),
                unpack_partial(v[u]));
    }
  }
  return state;
}

// Adds the states of the other warps of the slice, in order; all are loaded before the first is
// added.
__device__ __forceinline__ void join_warps(uint32_t s_states, int warp, int warps_per_slice,
                                           int lane, MergeState& state) {
  float4 rows[kMergeWarps - 1], values[kMergeWarps - 1];
  float x = -INFINITY, y = -INFINITY;
#pragma unroll
  for (int other = 1; other < kMergeWarps; ++other) {
    float4& row = rows[other - 1];
    row = make_float4(-INFINITY, 0.0f, -INFINITY, 0.0f);
    values[other - 1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (other < warps_per_slice) {
      const uint32_t s_state = s_states + ((warp + other) * 32 + lane) * 32;
      row = ptx::load_shared_float4(s_state);
      values[other - 1] = ptx::load_shared_float4(s_state + 16);
    }
    x = fmaxf(x, row.x);
    y = fmaxf(y, row.z);
  }
  state.raise(x, y);
#pragma unroll
  for (int other = 0; other < kMergeWarps - 1; ++other) {
    state.add(rows[other].x, rows[other].z, rows[other].y, rows[other].w, values[other]);
  }
}

template <class C>
__device__ __forceinline__ void store_merged(const Params& params, int sequence, int row_block,
                                             int query_len, int slice, const MergeState& state,
                                             int lane) {
  const int c = lane & 3, warp = slice & 3, block = slice >> 2;
  const int j = block % C::kRowBlocks8, chunk = block / C::kRowBlocks8;
  const float f0 = state.sum_0 > 0.0f ? ptx::reciprocal_approx(state.sum_0) : 0.0f;
  const float f1 = state.sum_1 > 0.0f ? ptx::reciprocal_approx(state.sum_1) : 0.0f;
  const OutputRow row(params, row_block * C::kRows + 8 * j + (lane >> 2), query_len);
  uint32_t* g_to =
      reinterpret_cast<uint32_t*>(row.o(params, sequence) + 64 * chunk + 16 * warp + 2 * c);
  store_transposed(g_to, ptx::pack_pair<C::kIsF16>(state.value.x * f0, state.value.y * f1), row);
  store_transposed(g_to + 4, ptx::pack_pair<C::kIsF16>(state.value.z * f0, state.value.w * f1),
                   row);
  if (warp == 0 && chunk == 0 && lane < 4) {
    const int first = row_block * C::kRows + 8 * j + 2 * c;
    OutputRow(params, first, query_len)
        .store_lse(params, sequence, natural_lse(state.max_0, state.sum_0));
    OutputRow(params, first + 1, query_len)
        .store_lse(params, sequence, natural_lse(state.max_1, state.sum_1));
  }
}

// The CTA's slices of a sequence. The ring is idle by now and holds the states of warps that share
// a slice.
template <class C>
__device__ __forceinline__ void merge_sequence(const Params& params, uint32_t s_base, uint32_t tag,
                                               int sequence, int row_block,
                                               const PairSplits& splits, int split, int tid) {
  const uint32_t s_states = LD_SHARED(C, s_base, ring);
  const int lane = tid & 31, warp = tid >> 5;
  const int query_len = query_len_of(params, sequence);
  const int num_slices = (C::kSlices - split + splits.num_splits - 1) / splits.num_splits;
  const bool in_step = ptx::load_shared_u32(LD_SHARED(C, s_base, num_tiles)) <= C::kTilesInStep;
  int warps_per_slice = kMergeWarps;
  while (warps_per_slice > 1 && num_slices * warps_per_slice > kMergeWarps) {
    warps_per_slice >>= 1;
  }
  const int first = warp & (warps_per_slice - 1);
  const int stride = kMergeWarps / warps_per_slice;
#pragma unroll 1
  for (int i = warp / warps_per_slice; i - warp / warps_per_slice < num_slices; i += stride) {
    const int slice = split + i * splits.num_splits;
    MergeState state;
    if (i < num_slices) {
      state = merge_slice<C>(params, tag, row_block, splits, slice, first, warps_per_slice, in_step,
                             lane);
    }
    if (warps_per_slice > 1) {
      const uint32_t s_state = s_states + (warp * 32 + lane) * 32;
      ptx::store_shared(s_state, make_float4(state.max_0, state.sum_0, state.max_1, state.sum_1));
      ptx::store_shared(s_state + 16, state.value);
      ptx::named_barrier_sync(kMergeBarrier, 32 * kMergeWarps);
      if (first == 0) join_warps(s_states, warp, warps_per_slice, lane, state);
      ptx::named_barrier_sync(kMergeBarrier, 32 * kMergeWarps);
    }
    if (first == 0 && i < num_slices) {
      store_merged<C>(params, sequence, row_block, query_len, slice, state, lane);
    }
  }
}

// By the kMergeWarps, thread tid of them, after all segments of the CTA.
template <class C>
__device__ __forceinline__ void merge_splits(const Params& params, uint32_t s_base, int row_block,
                                             int tid) {
  ptx::named_barrier_sync(kMergeBarrier, 32 * kMergeWarps);  // the ring is idle, s.splits complete
  const uint32_t num_splits = ptx::load_shared_u32(LD_SHARED(C, s_base, num_splits));
#pragma unroll 1
  for (uint32_t i = 0; i < num_splits; ++i) {
    const int4 split = ptx::load_shared_int4(LD_SHARED(C, s_base, splits) + 16 * i);
    merge_sequence<C>(params, s_base, ptx::load_shared_u32(LD_SHARED(C, s_base, tag)), split.x,
                      row_block, PairSplits{split.y, split.z}, split.w, tid);
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_MERGE_CUH_
