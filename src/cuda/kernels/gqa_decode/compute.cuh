// The arithmetic of a warp: S^T = K Q^T, softmax, O^T += V^T P^T for its 16 tokens of every tile
// and a row group of 8 query rows. P^T goes from accumulator to operand by a register transpose: no
// shared memory, no barrier.
//
// Lane 4 g + c holds scores[0..3] = (token g, row 2c), (g, 2c + 1), (g + 8, 2c), (g + 8, 2c + 1);
// output[b][0..3] = (dim 16 b + g, row 2c), (.., 2c + 1), (dim 16 b + g + 8, 2c), (.., 2c + 1).
#ifndef LONGDECODE_CUDA_KERNELS_GQA_DECODE_COMPUTE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_DECODE_COMPUTE_CUH_

#include <cmath>

#include "cuda/device/hidden_values.cuh"
#include "cuda/device/softmax.cuh"
#include "cuda/kernels/gqa_decode/pipeline.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace longdecode::cuda::gqa {

// Byte offsets, within a plane (K or V) of a stage, of the 16-byte matrix rows that a lane loads:
// index = step of 16 channels within a chunk.
template <class C>
struct FragmentRows {
  uint32_t k[C::kChunkSteps], v[C::kChunkSteps];
  uint32_t chunk_bytes;

  __device__ __forceinline__ FragmentRows(const Params& params, int token_warp) {
    const int lane = threadIdx.x & 31;
    const int box_tokens = 1 << params.box_shift;
    const int first = 16 * token_warp;
    chunk_bytes = box_tokens * C::kRowBytes;
    const uint32_t start = (first >> params.box_shift) * (box_tokens * C::kDim * 2) +
                           (first & (box_tokens - 1)) * C::kRowBytes;
    // K: tokens are the rows of A. V: tokens are the columns, so the matrices come transposed.
    const int k_row = lane & 15, k_half = lane >> 4;
    const int v_row = (lane & 7) + 8 * (lane >> 4), v_half = (lane >> 3) & 1;
    const int phase = C::kRowBytes == 128 ? lane & 7 : (lane & 7) >> 1;
#pragma unroll
    for (int step = 0; step < C::kChunkSteps; ++step) {
      k[step] = start + k_row * C::kRowBytes + (((2 * step + k_half) ^ phase) << 4);
      v[step] = start + v_row * C::kRowBytes + (((2 * step + v_half) ^ phase) << 4);
    }
  }
};

// Query rows of a row group as the B operand; rows that do not exist are zero.
template <class C>
struct QueryFragments {
  uint32_t b[C::kDimBlocks][2];

  __device__ __forceinline__ void load(const Params& params, const WorkItem& item, int row_group,
                                       int query_len) {
    const int lane = threadIdx.x & 31;
    const int row = row_group * kGroupRows + (lane >> 2);
    const int token = divide(row, params.group);
    const int head = item.head * static_cast<int>(params.group.value) + row -
                     token * static_cast<int>(params.group.value);
    const bool exists = token < query_len;
    const uint16_t* g_row = params.g_q + item.sequence * params.q_batch_stride +
                            token * params.q_token_stride + head * params.q_head_stride +
                            2 * (lane & 3);
#pragma unroll
    for (int step = 0; step < C::kDimBlocks; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint16_t* g_from = g_row + 16 * step + 8 * half;
        b[step][half] = exists ? __ldg(reinterpret_cast<const uint32_t*>(g_from)) : 0u;
      }
    }
  }
};

// What the lane's two rows see, and what nobody sees.
struct Visibility {
  int first[2], end[2];        // tokens of each row
  int first_token, kv_len;     // of all
  int first_shared, last_end;  // every row sees [first_shared, last_end)

  __device__ __forceinline__ Visibility(const Params& params, const WorkItem& item, int row_group,
                                        int query_len) {
    // In uniform registers.
    first_token = __reduce_max_sync(kFullWarp, item.first_token);
    kv_len = __reduce_max_sync(kFullWarp, item.kv_len);
    last_end = params.causal ? kv_len - (query_len - 1) : kv_len;
    first_shared = params.sliding_window > 0 ? kv_len - params.sliding_window : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_group * kGroupRows + 2 * (threadIdx.x & 3) + i;
      const int position = kv_len - query_len + min(divide(row, params.group), query_len - 1);
      end[i] = params.causal ? position + 1 : kv_len;
      first[i] = params.sliding_window > 0 ? position - params.sliding_window + 1 : 0;
    }
  }
  // True when some token of the tile is hidden from some row.
  __device__ __forceinline__ bool cuts(int first_of_tile, int tokens) const {
    return first_of_tile < first_shared || first_of_tile + tokens > last_end;
  }
  __device__ __forceinline__ bool sees(int i, int token) const {
    return token >= first[i] && token < end[i];
  }
  // Whether some of 16 tokens are hidden from some rows, but not from all.
  __device__ __forceinline__ bool hides_some(int token) const {
    return (first_token < first_shared && token < first_shared) ||
           (last_end < kv_len && token + 16 > last_end);
  }
  // Which of 16 tokens are memory of the sequence, a bit each.
  __device__ __forceinline__ uint32_t memory_of(int token) const {
    const int begin = min(max(first_token - token, 0), 16);
    const int end = min(max(kv_len - token, 0), 16);
    return ((1u << end) - 1) & ~((1u << begin) - 1);
  }
};

// Running maximum, in log2 units, and sum of the lane's two rows.
struct SoftmaxState {
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {0.0f, 0.0f};  // over the lane's own tokens
};

template <class C>
__device__ __forceinline__ void multiply_keys(uint32_t s_k, const FragmentRows<C>& rows,
                                              const QueryFragments<C>& q, float (&scores)[4]) {
  float sums[2][4] = {};  // two chains, to hide the latency of the products
#pragma unroll
  for (int chunk = 0; chunk < C::kChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < C::kChunkSteps; ++i) {
      const int step = chunk * C::kChunkSteps + i;
      uint32_t a[4];
      ptx::load_matrix_x4(a, s_k + rows.k[i] + chunk * rows.chunk_bytes);
      ptx::mma_16bit<C::kIsF16>(sums[step & 1], a[0], a[1], a[2], a[3], q.b[step][0], q.b[step][1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) scores[i] = sums[0][i] + sums[1][i];
}

// To log2 weights, soft cap included.
__device__ __forceinline__ void scale_scores(const Params& params, float (&scores)[4]) {
  if (params.cap_out != 0.0f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = params.cap_out * tanhf(params.cap_in * scores[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] *= params.softmax_scale_log2e;
  }
}

// From log2 weights to 16-bit weights of rows 2 c, 2 c + 1, of token g and of token g + 8; rescales
// the output when a maximum rises.
template <class C>
__device__ __forceinline__ void exponentiate(const float (&scores)[4], SoftmaxState& state,
                                             float (&output)[C::kDimBlocks][4],
                                             uint32_t (&packed)[2]) {
  float tile_max[2] = {fmaxf(scores[0], scores[2]), fmaxf(scores[1], scores[3])};
#pragma unroll
  for (int offset = 4; offset < 32; offset <<= 1) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tile_max[i] = fmaxf(tile_max[i], __shfl_xor_sync(kFullWarp, tile_max[i], offset));
    }
  }
  const bool raised = tile_max[0] > state.row_max[0] || tile_max[1] > state.row_max[1];
  if (__any_sync(kFullWarp, raised)) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float row_max = fmaxf(state.row_max[i], tile_max[i]);
      factor[i] = row_max > state.row_max[i] ? ptx::exp2_approx(state.row_max[i] - row_max) : 1.0f;
      state.row_max[i] = row_max;
      state.row_sum[i] *= factor[i];
    }
#pragma unroll
    for (int block = 0; block < C::kDimBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) output[block][i] *= factor[i & 1];
    }
  }
  float weights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    weights[i] = ptx::exp2_approx(scores[i] - exponent_base(state.row_max[i & 1]));
    state.row_sum[i & 1] += weights[i];
  }
  packed[0] = ptx::pack_pair<C::kIsF16>(weights[0], weights[1]);
  packed[1] = ptx::pack_pair<C::kIsF16>(weights[2], weights[3]);
}

// Calls visit(block of 16 dims, V^T of it as the A operand). The block is a constant where all
// chunks are unrolled.
template <class C, int kUnrolledChunks = C::kChunks, class Visit>
__device__ __forceinline__ void for_each_values(uint32_t s_v, const FragmentRows<C>& rows,
                                                const Visit& visit) {
#pragma unroll kUnrolledChunks
  for (int chunk = 0; chunk < C::kChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < C::kChunkSteps; ++i) {
      uint32_t a[4];
      ptx::load_matrix_x4_transposed(a, s_v + rows.v[i] + chunk * rows.chunk_bytes);
      visit(chunk * C::kChunkSteps + i, a);
    }
  }
}

// Of the tokens in `tokens`, 16 from `token` on, not all of which all rows see, takes those out
// whose values are not all finite: rows that see them get them here.
template <class C>
__device__ __forceinline__ void add_hidden_values(uint32_t s_v, const Visibility& visibility,
                                                  int token, const FragmentRows<C>& rows,
                                                  const uint32_t (&weights)[2],
                                                  float (&output)[C::kDimBlocks][4],
                                                  uint32_t& tokens) {
  const int lane = threadIdx.x & 31;
  uint32_t left = 0;
  constexpr int kUnrolledChunks = C::kDim > 128 ? 1 : C::kChunks;  // or it takes too many registers
  for_each_values<C, kUnrolledChunks>(s_v, rows, [&](int, const uint32_t(&a)[4]) {
    left |= non_finite_tokens<C::kIsF16>(a, lane);
  });
  left = __reduce_or_sync(kFullWarp, left) & tokens;
  tokens &= ~left;
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const int k = __ffs(static_cast<int>(left)) - 1;
    const TokenWeights<C::kIsF16> of_token(weights, k, visibility.sees(0, token + k),
                                           visibility.sees(1, token + k), lane);
    for_each_values<C>(s_v, rows, [&](int block, const uint32_t(&a)[4]) {
      add_token<C::kIsF16>(a, k, of_token, lane, output[block]);
    });
  }
}

// tokens: whose values are multiplied. P of the others is 0, but 0 * NaN is not, or
// add_hidden_values has added them.
template <class C, bool kMasked>
__device__ __forceinline__ void multiply_values(uint32_t s_v, const FragmentRows<C>& rows,
                                                const uint32_t (&p)[2], uint32_t tokens,
                                                float (&output)[C::kDimBlocks][4]) {
  const int first = 2 * (threadIdx.x & 3);
  const uint32_t mask_low = kMasked ? pair_mask_of(tokens, first) : 0;
  const uint32_t mask_high = kMasked ? pair_mask_of(tokens, first + 8) : 0;
  for_each_values<C>(s_v, rows, [&](int block, uint32_t(&a)[4]) {
    if constexpr (kMasked) {
      a[0] &= mask_low, a[1] &= mask_low;
      a[2] &= mask_high, a[3] &= mask_high;
    }
    ptx::mma_16bit<C::kIsF16>(output[block], a[0], a[1], a[2], a[3], p[0], p[1]);
  });
}

// One tile: s_k, s_v planes of its stage, `token` the warp's first. await_values() returns when V
// is there.
template <class C, bool kMasked, class AwaitValues>
__device__ __forceinline__ void attend_tile(const Params& params, const Visibility& visibility,
                                            uint32_t s_k, int token, const FragmentRows<C>& rows,
                                            const QueryFragments<C>& q, SoftmaxState& state,
                                            float (&output)[C::kDimBlocks][4],
                                            const AwaitValues& await_values) {
  const int lane = threadIdx.x & 31;
  float scores[4];
  multiply_keys<C>(s_k, rows, q, scores);
  scale_scores(params, scores);
  if constexpr (kMasked) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!visibility.sees(i & 1, token + (lane >> 2) + 8 * (i >> 1))) scores[i] = -INFINITY;
    }
  }
  uint32_t weights[2];
  exponentiate<C>(scores, state, output, weights);
  const uint32_t s_v = s_k + C::kPlaneBytes;
  uint32_t tokens = 0;
  if constexpr (kMasked) {
    await_values();
    tokens = visibility.memory_of(token);
    if (visibility.hides_some(token)) {
      add_hidden_values<C>(s_v, visibility, token, rows, weights, output, tokens);
    }
  }
  // P^T as the B operand.
  const uint32_t p[2] = {ptx::transpose_matrix(weights[0]), ptx::transpose_matrix(weights[1])};
  if constexpr (!kMasked) await_values();
  multiply_values<C, kMasked>(s_v, rows, p, tokens, output);
}

}  // namespace longdecode::cuda::gqa

#endif  // LONGDECODE_CUDA_KERNELS_GQA_DECODE_COMPUTE_CUH_
