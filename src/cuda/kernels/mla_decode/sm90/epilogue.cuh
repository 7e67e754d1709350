// The end of a segment: the final result of a sequence that is not split, else a partial result.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EPILOGUE_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_EPILOGUE_CUH_

#include "cuda/kernels/mla_decode/sm90/compute.cuh"

namespace longdecode::cuda::mla_sm90 {

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
__device__ __forceinline__ uint4* partial_of(const Params& params, int row_block, int slot) {
  return params.g_partials +
         (static_cast<int64_t>(row_block) * 2 * params.num_workers.value + slot) * C::kPartialUnits;
}

// Four values with the upper 24 of their bits (an error below 2^-15, against 2^-11 of an fp16
// output) and the run's tag: whoever reads the tag has the values too, without fence or flag.
__device__ __forceinline__ uint4 pack_partial(float a, float b, float c, float d, uint32_t tag) {
  const uint32_t last = __float_as_uint(d);
  return make_uint4(__byte_perm(__float_as_uint(a), last, 0x3217),
                    __byte_perm(__float_as_uint(b), last, 0x3216),
                    __byte_perm(__float_as_uint(c), last, 0x3215), tag);
}
__device__ __forceinline__ float4 unpack_partial(const uint4& v) {
  const uint32_t last = __byte_perm(__byte_perm(v.x, v.y, 0x0400), v.z, 0x3240);
  return make_float4(__uint_as_float(v.x & ~0xffu), __uint_as_float(v.y & ~0xffu),
                     __uint_as_float(v.z & ~0xffu), __uint_as_float(last & ~0xffu));
}

// By the 128 scoring threads, once s.row_stats is complete: the rows' (max, sum) to the partial, or
// lse to the output and what the accumulators have to be multiplied with to s.row_inverse. A
// barrier must follow.
template <class C>
__device__ __forceinline__ void finish_rows(const Params& params, uint32_t s_base,
                                            const Segment& segment, int row_block, int query_len,
                                            int tid) {
  if (tid >= C::kRows) return;
  const float2 row = ptx::load_shared_float2(LD_SHARED(C, s_base, row_stats) + 8 * tid);
  if (segment.num_splits > 1) {
    ptx::store_atomic_16(
        partial_of<C>(params, row_block, partial_slot(segment.first_worker, segment.split)) +
            C::kSlices * 32 + tid,
        make_uint4(__float_as_uint(row.x), __float_as_uint(row.y), 0,
                   ptx::load_shared_u32(LD_SHARED(C, s_base, tag))));
  } else {
    ptx::store_shared(LD_SHARED(C, s_base, row_inverse) + 4 * tid,
                      row.y > 0.0f ? ptx::reciprocal_approx(row.y) : 0.0f);
    OutputRow(params, row_block * C::kRows + tid, query_len)
        .store_lse(params, segment.sequence, natural_lse(row.x, row.y));
  }
}

// Two 16-bit values of a row, dims 2 c and 2 c + 1 of 8: `pair` holds rows 2 c, 2 c + 1 of dim g.
__device__ __forceinline__ void store_transposed(uint32_t* g_to, uint32_t pair,
                                                 const OutputRow& row) {
  const uint32_t value = ptx::transpose_matrix(pair);
  if (row.exists) *g_to = row.is_padding ? 0u : value;
}

// By every accumulating warpgroup, thread tid of 128, holding chunks first_chunk, ...; of these
// kBegin, ..., kEnd - 1 are stored.
template <class C, int kBegin = 0, int kEnd = C::kThreadChunks>
__device__ __forceinline__ void store_partial(
    const Params& params, uint32_t s_base, const Segment& segment, int row_block, int first_chunk,
    const float (&output)[C::kThreadChunks][C::kAccumulator], int tid) {
  const uint32_t tag = ptx::load_shared_u32(LD_SHARED(C, s_base, tag));
  uint4* g_to =
      partial_of<C>(params, row_block, partial_slot(segment.first_worker, segment.split)) +
      first_chunk * C::kRowBlocks8 * 128 + tid;
#pragma unroll
  for (int chunk = kBegin; chunk < kEnd; ++chunk) {
#pragma unroll
    for (int j = 0; j < C::kRowBlocks8; ++j) {
      const float* v = output[chunk] + 4 * j;
      ptx::store_atomic_16(g_to + (chunk * C::kRowBlocks8 + j) * 128,
                           pack_partial(v[0], v[1], v[2], v[3], tag));
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
