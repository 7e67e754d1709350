// The end of a segment: the final result of a sequence that is not split, else a partial result.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EPILOGUE_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EPILOGUE_CUH_

#include "cuda/kernels/mla_decode/sm90/compute.cuh"

namespace longdecode::cuda::mla_sm90 {

// Natural-log lse of a maximum in log2 units and a sum.
__device__ __forceinline__ float natural_lse(float row_max, float row_sum) {
  constexpr float kLn2 = 0.693147180559945f;
  return row_sum > 0.0f ? fmaf(row_max, kLn2, logf(row_sum)) : -INFINITY;
}

// Where a query row lives in the tensors.
struct OutputRow {
  int token, head;
  bool exists;      // within [query_len, num_q_heads] of the tensors
  bool is_padding;  // a ragged sequence has fewer query tokens: o = 0, lse = -inf

  __device__ __forceinline__ OutputRow(const Params& params, int global_row, int query_len) {
    token = divide(global_row, params.num_q_heads);
    head = global_row - token * static_cast<int>(params.num_q_heads.value);
    exists = token < params.query_len;
    is_padding = token >= query_len;
  }
  __device__ __forceinline__ uint16_t* o(const Params& params, int sequence) const {
    return params.g_o + sequence * params.o_batch_stride + token * params.o_token_stride +
           head * params.o_head_stride;
  }
  __device__ __forceinline__ void store_lse(const Params& params, int sequence, float lse) const {
    if (params.g_lse == nullptr || !exists) return;
    const int64_t row = (static_cast<int64_t>(sequence) * params.query_len + token);
    params.g_lse[row * params.num_q_heads.value + head] = is_padding ? -INFINITY : lse;
  }
};

__device__ __forceinline__ int query_len_of(const Params& params, int sequence) {
  return params.g_query_lens == nullptr
             ? params.query_len
             : min(params.query_len, ptx::load_global_i32(params.g_query_lens + sequence));
}

template <class C>
__device__ __forceinline__ float4* partial_of(const Params& params, int row_block, int slot) {
  return reinterpret_cast<float4*>(params.g_partials) +
         (static_cast<int64_t>(row_block) * 2 * params.num_workers.value + slot) *
             C::kPartialFloat4;
}

// By the scoring warpgroup: sums over its warps, writes lse or (max, sum), and leaves in
// s.row_inverse what the accumulators have to be multiplied with. A barrier must follow.
template <class C>
__device__ __forceinline__ void finish_rows(const Params& params, uint32_t s_base,
                                            const Segment& segment, int row_block, int query_len,
                                            SoftmaxState<C>& state, int tid) {
  reduce_in_warp<C, true>(state.row_sum, s_base, tid);
  ptx::named_barrier_sync(kScoreBarrier, 128);
  if (tid >= 4) return;
  const bool is_split = segment.num_splits > 1;
  float4* g_rows =
      partial_of<C>(params, row_block, partial_slot(segment.first_worker, segment.split)) +
      C::kRows * 128;
#pragma unroll
  for (int j = 0; j < C::kRowBlocks8; ++j) {
    const float2 sum = reduce_over_warps<C, true>(s_base, j, tid);
    const float2 row_max = make_float2(state.row_max[2 * j], state.row_max[2 * j + 1]);
    float2 factor = make_float2(1.0f, 1.0f);
    if (is_split) {
      __stcg(g_rows + 4 * j + tid, make_float4(row_max.x, sum.x, row_max.y, sum.y));
    } else {
      factor.x = sum.x > 0.0f ? ptx::reciprocal_approx(sum.x) : 0.0f;
      factor.y = sum.y > 0.0f ? ptx::reciprocal_approx(sum.y) : 0.0f;
      const int row = row_block * C::kRows + 8 * j + 2 * tid;
      OutputRow(params, row, query_len)
          .store_lse(params, segment.sequence, natural_lse(row_max.x, sum.x));
      OutputRow(params, row + 1, query_len)
          .store_lse(params, segment.sequence, natural_lse(row_max.y, sum.y));
    }
    ptx::store_shared(LD_SHARED(C, s_base, row_inverse) + (8 * j + 2 * tid) * 4, factor);
  }
}

// Two 16-bit values of a row, dims 2 c and 2 c + 1 of 8: `pair` holds rows 2 c, 2 c + 1 of dim g.
__device__ __forceinline__ void store_transposed(uint32_t* g_to, uint32_t pair,
                                                 const OutputRow& row) {
  const uint32_t value = ptx::transpose_matrix(pair);
  if (row.exists) *g_to = row.is_padding ? 0u : value;
}

// By every accumulating warpgroup, thread tid of 128, holding chunks first_chunk, ...
template <class C>
__device__ __forceinline__ void store_partial(
    const Params& params, const Segment& segment, int row_block, int first_chunk,
    const float (&output)[C::kThreadChunks][C::kAccumulator], int tid) {
  float4* g_to =
      partial_of<C>(params, row_block, partial_slot(segment.first_worker, segment.split)) +
      first_chunk * C::kRowBlocks8 * 128 + tid;
#pragma unroll
  for (int chunk = 0; chunk < C::kThreadChunks; ++chunk) {
#pragma unroll
    for (int j = 0; j < C::kRowBlocks8; ++j) {
      const float* v = output[chunk] + 4 * j;
      __stcg(g_to + (chunk * C::kRowBlocks8 + j) * 128, make_float4(v[0], v[1], v[2], v[3]));
    }
  }
}

template <class C>
__device__ __forceinline__ void store_output(
    const Params& params, uint32_t s_base, const Segment& segment, int row_block, int query_len,
    int first_chunk, const float (&output)[C::kThreadChunks][C::kAccumulator], int tid) {
  const int lane = tid & 31, warp = tid >> 5, c = lane & 3;
#pragma unroll
  for (int j = 0; j < C::kRowBlocks8; ++j) {
    __syncwarp();  // keeps ptxas from computing the addresses of several blocks at once: spills
    const float2 factor =
        ptx::load_shared_float2(LD_SHARED(C, s_base, row_inverse) + (8 * j + 2 * c) * 4);
    const OutputRow row(params, row_block * C::kRows + 8 * j + (lane >> 2), query_len);
    uint16_t* g_row = row.o(params, segment.sequence) + 64 * first_chunk + 16 * warp + 2 * c;
#pragma unroll
    for (int chunk = 0; chunk < C::kThreadChunks; ++chunk) {
      const float* v = output[chunk] + 4 * j;
      uint32_t* g_to = reinterpret_cast<uint32_t*>(g_row + 64 * chunk);
      store_transposed(g_to, ptx::pack_pair<C::kIsF16>(v[0] * factor.x, v[1] * factor.y), row);
      store_transposed(g_to + 4, ptx::pack_pair<C::kIsF16>(v[2] * factor.x, v[3] * factor.y), row);
    }
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EPILOGUE_CUH_
