// Joins the partial results of split sequences: the second kernel, launched so that it is already
// resident (programmatic dependent launch) when the first one ends.
//
// A slice is what one warp of the first kernel holds of one accumulator block: 16 dims x 8 rows,
// 32 float4 of each partial. warps_per_slice warps of a CTA share a slice, each takes every
// warps_per_slice-th split; they meet in shared memory in a fixed order.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_MERGE_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_MERGE_CUH_

#include "cuda/kernels/mla_decode/sm90/epilogue.cuh"

namespace longdecode::cuda::mla_sm90 {

inline constexpr int kMergeWarps = 8;
inline constexpr int kMergeLoads = 8;  // splits whose loads a warp has in flight

// Running merge of two rows: value = (dim g, row 0), (g, row 1), (g + 8, row 0), (g + 8, row 1).
struct MergeState {
  float max_0 = -INFINITY, max_1 = -INFINITY, sum_0 = 0.0f, sum_1 = 0.0f;
  float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  // Makes max_0, max_1 at least x, y.
  __device__ __forceinline__ void raise(float x, float y) {
    x = fmaxf(x, max_0);
    y = fmaxf(y, max_1);
    const float f0 = weight(max_0, x), f1 = weight(max_1, y);
    max_0 = x, max_1 = y;
    sum_0 *= f0, sum_1 *= f1;
    value.x *= f0, value.y *= f1, value.z *= f0, value.w *= f1;
  }
  // rows = (max 0, sum 0, max 1, sum 1), both maxima at most max_0, max_1.
  __device__ __forceinline__ void add(const float4& rows, const float4& v) {
    const float w0 = weight(rows.x, max_0), w1 = weight(rows.z, max_1);
    sum_0 = fmaf(w0, rows.y, sum_0);
    sum_1 = fmaf(w1, rows.w, sum_1);
    value.x = fmaf(w0, v.x, value.x);
    value.y = fmaf(w1, v.y, value.y);
    value.z = fmaf(w0, v.z, value.z);
    value.w = fmaf(w1, v.w, value.w);
  }
  static __device__ __forceinline__ float weight(float row_max, float reference) {
    return row_max == -INFINITY ? 0.0f : ptx::exp2_approx(row_max - reference);
  }
};

// Splits first, first + step, ... of a slice.
template <class C>
__device__ __forceinline__ MergeState merge_slice(const Params& params, int row_block,
                                                  const Splits& splits, int slice, int first,
                                                  int step, int lane) {
  const int j = (slice >> 2) % C::kRowBlocks8;
  const float4* g_values = partial_of<C>(params, row_block, 0) + slice * 32 + lane;
  const float4* g_rows = partial_of<C>(params, row_block, 0) + C::kRows * 128 + 4 * j + (lane & 3);
  MergeState state;
  for (int k0 = first; k0 < splits.num_splits; k0 += kMergeLoads * step) {
    float4 v[kMergeLoads], rows[kMergeLoads];
#pragma unroll
    for (int u = 0; u < kMergeLoads; ++u) {
      const int k = k0 + u * step;
      v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      rows[u] = make_float4(-INFINITY, 0.0f, -INFINITY, 0.0f);
      if (k < splits.num_splits) {
        const int64_t offset =
            static_cast<int64_t>(partial_slot(splits.first_worker, k)) * C::kPartialFloat4;
        v[u] = __ldcg(g_values + offset);
        rows[u] = __ldcg(g_rows + offset);
      }
    }
    float x = -INFINITY, y = -INFINITY;
#pragma unroll
    for (int u = 0; u < kMergeLoads; ++u) {
      x = fmaxf(x, rows[u].x);
      y = fmaxf(y, rows[u].z);
    }
    state.raise(x, y);
#pragma unroll
    for (int u = 0; u < kMergeLoads; ++u) state.add(rows[u], v[u]);
  }
  return state;
}

// Adds the states of the other warps of the slice, in order.
__device__ __forceinline__ void join_warps(const float4 (&s_state)[kMergeWarps][32][2], int warp,
                                           int warps_per_slice, int lane, MergeState& state) {
  float4 rows[kMergeWarps], values[kMergeWarps];
  float x = -INFINITY, y = -INFINITY;
#pragma unroll
  for (int other = 1; other < kMergeWarps; ++other) {
    const bool exists = other < warps_per_slice;
    rows[other] =
        exists ? s_state[warp + other][lane][0] : make_float4(-INFINITY, 0.0f, -INFINITY, 0.0f);
    values[other] = exists ? s_state[warp + other][lane][1] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    x = fmaxf(x, rows[other].x);
    y = fmaxf(y, rows[other].z);
  }
  state.raise(x, y);
#pragma unroll
  for (int other = 1; other < kMergeWarps; ++other) state.add(rows[other], values[other]);
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

// grid (CTAs per sequence, sequences or workers, row blocks) x kMergeWarps warps.
template <int kInstance>
__global__ void __launch_bounds__(32 * kMergeWarps, 2)
    mla_merge_kernel(const __grid_constant__ Params params, int warps_per_slice) {
  using C = Config<kInstances[kInstance]>;
  constexpr int kSlices = C::kRows * 4;
  __shared__ float4 s_state[kMergeWarps][32][2];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row_block = blockIdx.z;
  int sequence = blockIdx.y;
  Splits splits{0, 0};
  if (params.batch <= kSmallBatch || params.fixed_splits) {
    Schedule schedule;
    schedule.prefetch(params, 0);
    schedule.init(params, nullptr);
    splits = schedule.splits_of(params, sequence);
    ptx::wait_dependency();
  } else {
    ptx::wait_dependency();
    const int worker = blockIdx.y;
    sequence = __ldcg(params.g_split_info + 2 * worker);
    splits = {worker - 1, __ldcg(params.g_split_info + 2 * worker + 1)};
  }
  if (splits.num_splits <= 1) return;
  const int query_len = query_len_of(params, sequence);
  const int first = warp % warps_per_slice;
  const int slices_per_cta = kMergeWarps / warps_per_slice;
  for (int slice = blockIdx.x * slices_per_cta + warp / warps_per_slice; slice < kSlices;
       slice += gridDim.x * slices_per_cta) {
    MergeState state =
        merge_slice<C>(params, row_block, splits, slice, first, warps_per_slice, lane);
    if (warps_per_slice > 1) {
      s_state[warp][lane][0] = make_float4(state.max_0, state.sum_0, state.max_1, state.sum_1);
      s_state[warp][lane][1] = state.value;
      __syncthreads();
      if (first == 0) join_warps(s_state, warp, warps_per_slice, lane, state);
      __syncthreads();
    }
    if (first == 0) {
      store_merged<C>(params, sequence, row_block, query_len, slice, state, lane);
    }
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_MERGE_CUH_
