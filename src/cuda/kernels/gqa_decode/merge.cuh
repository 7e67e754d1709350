// Joins the partial results of split pairs: the second kernel, launched so that it is already
// resident (programmatic dependent launch) when the first one ends.
//
// A slice is a block of 16 dims of a row group: 32 float4 of each partial. warps_per_slice warps of
// a CTA share a slice, each takes every warps_per_slice-th split; they meet in shared memory in a
// fixed order.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_MERGE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_MERGE_CUH_

#include "cuda/kernels/gqa_decode/epilogue.cuh"
#include "cuda/kernels/gqa_decode/schedule.cuh"

namespace longdecode::cuda::gqa {

inline constexpr int kMergeWarps = 8;
inline constexpr int kMergeLoads = 8;  // splits whose loads a warp has in flight

// Running merge of the lane's two rows.
struct MergeState {
  RowTotal totals[2];
  float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  // rows[u] = (max, sum) of both rows of partial u.
  template <int kCount>
  __device__ __forceinline__ void add(const float4 (&rows)[kCount],
                                      const float4 (&values)[kCount]) {
    float top[2] = {totals[0].row_max, totals[1].row_max};
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      top[0] = fmaxf(top[0], rows[u].x);
      top[1] = fmaxf(top[1], rows[u].z);
    }
    const float f0 = part_weight(totals[0].row_max, top[0]);
    const float f1 = part_weight(totals[1].row_max, top[1]);
    totals[0] = {top[0], totals[0].row_sum * f0};
    totals[1] = {top[1], totals[1].row_sum * f1};
    value = make_float4(value.x * f0, value.y * f1, value.z * f0, value.w * f1);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const float w0 = part_weight(rows[u].x, top[0]), w1 = part_weight(rows[u].z, top[1]);
      totals[0].row_sum = fmaf(w0, rows[u].y, totals[0].row_sum);
      totals[1].row_sum = fmaf(w1, rows[u].w, totals[1].row_sum);
      value.x = fmaf(w0, values[u].x, value.x);
      value.y = fmaf(w1, values[u].y, value.y);
      value.z = fmaf(w0, values[u].z, value.z);
      value.w = fmaf(w1, values[u].w, value.w);
    }
  }
};

// Splits first, first + step, ... of a slice.
template <class C>
__device__ __forceinline__ MergeState merge_slice(const Params& params, const PairSplits& splits,
                                                  int row_group, int block, int first, int step) {
  const int lane = threadIdx.x & 31;
  MergeState state;
  for (int k0 = first; k0 < splits.num_splits; k0 += kMergeLoads * step) {
    float4 values[kMergeLoads], rows[kMergeLoads];
#pragma unroll
    for (int u = 0; u < kMergeLoads; ++u) {
      const int k = k0 + u * step;
      values[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      rows[u] = make_float4(-INFINITY, 0.0f, -INFINITY, 0.0f);
      if (k < splits.num_splits) {
        const float4* g_partial =
            partial_of<C>(params, partial_slot(splits.first_worker, k), row_group);
        values[u] = __ldcg(g_partial + block * 32 + lane);
        rows[u] = __ldcg(g_partial + C::kDimBlocks * 32 + (lane & 3));
      }
    }
    state.add(rows, values);
  }
  return state;
}

// Adds the states of the other warps of the slice, in order.
__device__ __forceinline__ void join_warps(const float4 (&s_state)[kMergeWarps][2][32], int warp,
                                           int warps_per_slice, MergeState& state) {
  const int lane = threadIdx.x & 31;
  float4 rows[kMergeWarps - 1], values[kMergeWarps - 1];
#pragma unroll
  for (int other = 1; other < kMergeWarps; ++other) {
    const bool exists = other < warps_per_slice;
    rows[other - 1] =
        exists ? s_state[warp + other][0][lane] : make_float4(-INFINITY, 0.0f, -INFINITY, 0.0f);
    values[other - 1] =
        exists ? s_state[warp + other][1][lane] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  state.add(rows, values);
}

// grid (CTAs per row group, pairs or workers, row groups) x kMergeWarps warps.
template <int kInstance>
__global__ void __launch_bounds__(32 * kMergeWarps)
    gqa_merge_kernel(const __grid_constant__ Params params, int warps_per_slice) {
  using C = Config<kInstances[kInstance]>;
  __shared__ float4 s_state[kMergeWarps][2][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row_group = blockIdx.z;
  int pair = blockIdx.y;
  PairSplits splits;
  ptx::launch_dependents();
  if (params.merges_by_pair) {
    Schedule<C> schedule(params);
    schedule.init(params, 0, nullptr);
    const int sequence = pair / params.num_kv_heads;
    splits = schedule.splits_of(params, sequence, pair - sequence * params.num_kv_heads);
    ptx::wait_dependency();
  } else {
    ptx::wait_dependency();
    const int worker = blockIdx.y;
    pair = __ldcg(params.g_split_info + 2 * worker);
    splits = {worker - 1, __ldcg(params.g_split_info + 2 * worker + 1)};
  }
  if (splits.num_splits <= 1) return;
  const int sequence = pair / params.num_kv_heads;
  const int head = pair - sequence * params.num_kv_heads;
  const int first = warp % warps_per_slice;
  const int block = blockIdx.x * (kMergeWarps / warps_per_slice) + warp / warps_per_slice;
  const bool exists = block < C::kDimBlocks;
  MergeState state;
  if (exists) state = merge_slice<C>(params, splits, row_group, block, first, warps_per_slice);
  if (warps_per_slice > 1) {
    s_state[warp][0][lane] = make_float4(state.totals[0].row_max, state.totals[0].row_sum,
                                         state.totals[1].row_max, state.totals[1].row_sum);
    s_state[warp][1][lane] = state.value;
    __syncthreads();
    if (first == 0) join_warps(s_state, warp, warps_per_slice, state);
  }
  if (!exists || first != 0) return;
  const OutputWriter<C> writer(params, sequence, head, row_group, state.totals);
  writer.store(block, state.value);
  if (block == 0) writer.store_lse(params, sequence, head, row_group);
}

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_MERGE_CUH_
