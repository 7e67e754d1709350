// The arithmetic of a tile for up to 32 rows: S^T = K Q^T, softmax along M (the tokens), O^T += V^T
// P^T. rows.cuh has the scores of more rows.
//
// Thread t of the scoring warpgroup (warp w, lane 4 g + c) holds scores of tokens 16 w + g and
// 16 w + g + 8 and of query rows 8 j + 2 c + {0, 1}: scores[4 j + i] is token g + 8 (i / 2), row
// 2 c + i % 2. Arrays of kThreadRows hold one value per row, index 2 j + i % 2.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_COMPUTE_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_COMPUTE_CUH_

#include <cmath>

#include "cuda/device/hidden_values.cuh"
#include "cuda/device/softmax.cuh"
#include "cuda/kernels/mla_decode/sm90/load.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace longdecode::cuda::mla_sm90 {

// Running maximum (in units of log2, of the scaled scores) and sum of a thread's rows.
template <class C>
struct SoftmaxState {
  float row_max[C::kThreadRows];
  float row_sum[C::kThreadRows];  // over this thread's own tokens

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < C::kThreadRows; ++i) {
      row_max[i] = -INFINITY;
      row_sum[i] = 0.0f;
    }
  }
};

// Issues S^T = K Q^T of the tile in s_stage; the caller waits for it. await_box(box) returns when
// chunks 3 box ... 3 box + 2 have landed.
template <class C, class AwaitBox>
__device__ __forceinline__ void issue_scores(uint32_t s_base, uint32_t s_stage,
                                             float (&scores)[C::kAccumulator],
                                             const AwaitBox& await_box) {
  constexpr int kBoxSteps = kKeyDim / 16 / kFirstBoxes;
  const uint64_t k = ptx::wgmma_descriptor(s_stage);
  const uint64_t q = ptx::wgmma_descriptor(LD_SHARED(C, s_base, q));
#pragma unroll
  for (int box = 0; box < kFirstBoxes; ++box) {
    await_box(box);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = box * kBoxSteps; i < (box + 1) * kBoxSteps; ++i) {
      ptx::Wgmma<C::kRows, C::kIsF16, false>::mma(
          scores, k + (i >> 2) * (kChunkBytes / 16) + (i & 3) * 2,
          q + (i >> 2) * (C::kQChunkBytes / 16) + (i & 3) * 2, i != 0);
    }
  }
  ptx::wgmma_commit();
}

// Issues O^T += V^T P^T for kThreadChunks chunks of 64 value dims starting at s_values, in
// kValueGroups groups.
template <class C>
__device__ __forceinline__ void issue_values(uint32_t s_base, uint32_t s_values,
                                             float (&output)[C::kThreadChunks][C::kAccumulator]) {
  const uint64_t v = ptx::wgmma_descriptor(s_values);
  const uint64_t p = ptx::wgmma_descriptor(LD_SHARED(C, s_base, p));
#pragma unroll
  for (int chunk = 0; chunk < C::kThreadChunks; ++chunk) {
    if (chunk % C::kGroupChunks == 0) ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTileTokens / 16; ++i) {
      ptx::Wgmma<C::kRows, C::kIsF16, true>::mma(
          output[chunk], v + chunk * (kChunkBytes / 16) + i * 128, p + i * 2, true);
    }
    if (chunk % C::kGroupChunks == C::kGroupChunks - 1) ptx::wgmma_commit();
  }
}

// One step of reduce_in_warp: lanes whose numbers differ in `offset` exchange halves of kCount
// values; each keeps kCount / 2, at least one. Returns the first row index that was kept.
template <int kCount, bool kSum, int kSize>
__device__ __forceinline__ int exchange_halves(float (&value)[kSize], int offset, int lane) {
  constexpr int kKept = kCount > 1 ? kCount / 2 : 1;
  const bool upper = kCount > 1 && (lane & offset) != 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float own = upper ? value[kCount - kKept + i] : value[i];
    const float sent = upper ? value[i] : value[kCount - kKept + i];
    const float other = __shfl_xor_sync(kFullWarp, sent, offset);
    value[i] = kSum ? own + other : fmaxf(own, other);
  }
  return upper ? kKept : 0;
}

// Reduces a value per thread row over the 64 tokens of the warpgroup's warps, first over the 8
// lanes that share the rows: lanes exchange halves of the rows, so that the shuffles halve too.
// Leaves one value per warp and row in s_rows; a kScoreBarrier must follow.
template <class C, bool kSum>
__device__ __forceinline__ void reduce_in_warp(const float (&thread_value)[C::kThreadRows],
                                               uint32_t s_rows, int tid) {
  constexpr int kCount = C::kThreadRows;  // a power of two
  float value[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) value[i] = thread_value[i];
  const int lane = tid & 31;
  int index = exchange_halves<kCount, kSum>(value, 16, lane);
  index += exchange_halves<(kCount > 1 ? kCount / 2 : 1), kSum>(value, 8, lane);
  index += exchange_halves<(kCount > 3 ? kCount / 4 : 1), kSum>(value, 4, lane);
  // With fewer than 8 rows per thread several lanes end with the same row: one of them writes.
  constexpr int kIdle = kCount >= 8 ? 0 : kCount == 4 ? 4 : 12;
  if ((lane & kIdle) != 0) return;
  constexpr int kLeft = kCount > 8 ? kCount / 8 : 1;
  const uint32_t s_row = s_rows + (tid >> 5) * C::kRows * 4;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    const int row = 8 * ((index + i) >> 1) + 2 * (lane & 3) + ((index + i) & 1);
    ptx::store_shared(s_row + row * 4, value[i]);
  }
}

// The four warps' values of rows 8 j + 2 c and 8 j + 2 c + 1.
template <class C, bool kSum>
__device__ __forceinline__ float2 reduce_over_warps(uint32_t s_base, int j, int c) {
  const uint32_t s_row = LD_SHARED(C, s_base, warp_rows) + (8 * j + 2 * c) * 4;
  float2 v[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) v[w] = ptx::load_shared_float2(s_row + w * C::kRows * 4);
  return kSum ? make_float2((v[0].x + v[1].x) + (v[2].x + v[3].x),
                            (v[0].y + v[1].y) + (v[2].y + v[3].y))
              : make_float2(fmaxf(fmaxf(v[0].x, v[1].x), fmaxf(v[2].x, v[3].x)),
                            fmaxf(fmaxf(v[0].y, v[1].y), fmaxf(v[2].y, v[3].y)));
}

// What the masks of a segment need to know.
struct Visibility {
  const Params& params;
  int kv_len, query_len, first_row;

  // Tokens that every row sees.
  __device__ __forceinline__ int common_tokens() const {
    return kv_len - (params.causal ? max(query_len - 1, 0) : 0);
  }
  // True when some token of the tile is invisible to some row.
  __device__ __forceinline__ bool cuts(int tile) const {
    return (tile + 1) * kTileTokens > common_tokens();
  }
  // Tokens that a row of the row block sees.
  __device__ __forceinline__ int tokens(int row) const {
    if (!params.causal) return kv_len;
    return kv_len - (query_len - 1) +
           min(divide(first_row + row, params.num_q_heads), query_len - 1);
  }
};

template <class C>
__device__ __forceinline__ void mask_scores(const Visibility& visibility, int tile, int tid,
                                            float (&scores)[C::kAccumulator]) {
  const int token = tile * kTileTokens + 16 * (tid >> 5) + ((tid & 31) >> 2);
#pragma unroll
  for (int i = 0; i < C::kThreadRows; ++i) {
    const int limit = visibility.tokens(8 * (i >> 1) + 2 * (tid & 3) + (i & 1));
    const int low = (i >> 1) * 4 + (i & 1);
    if (token >= limit) scores[low] = -INFINITY;
    if (token + 8 >= limit) scores[low + 2] = -INFINITY;
  }
}

// True when one of eight 16-bit values is infinite or NaN.
template <bool kIsF16>
__device__ __forceinline__ bool has_non_finite(const int4& values) {
  const auto word = [](int bits) { return non_finite_halves<kIsF16>(static_cast<uint32_t>(bits)); };
  return (word(values.x) | word(values.y) | word(values.z) | word(values.w)) != 0;
}

// P is 0 for tokens that a row does not see, but 0 * NaN is not. So, in kChunks value chunks of a
// tile, rows past the sequence's end become 0, and of tokens that only later query tokens see what
// is not finite does: the scores of rows that see them are not finite either. By 128 threads.
template <class C, int kChunks>
__device__ __forceinline__ void zero_hidden(const Visibility& visibility, uint32_t s_chunks,
                                            int tile, int tid) {
  const int num_valid = visibility.kv_len - tile * kTileTokens;
  const int first = max(visibility.common_tokens() - tile * kTileTokens, 0);
#pragma unroll 1
  for (int i = tid; i < (kTileTokens - first) * 8 * kChunks; i += 128) {
    const int unit = i % (8 * kChunks), row = first + i / (8 * kChunks);
    const uint32_t s_unit = s_chunks + (unit >> 3) * kChunkBytes + row * 128 + (unit & 7) * 16;
    if (row < num_valid && !has_non_finite<C::kIsF16>(ptx::load_shared_int4(s_unit))) continue;
    ptx::store_shared(s_unit, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
  }
}

// Where a thread's row of the 8x8 matrices that it stores lies, of P from `first_row` on: P^T is
// the K-major B operand.
__device__ __forceinline__ uint32_t weights_row(uint32_t s_weights, int first_row, int tid) {
  const int lane = tid & 31, warp = tid >> 5;
  return s_weights + (first_row + (lane & 7)) * 128 +
         (((2 * warp + ((lane >> 3) & 1)) ^ (lane & 7)) << 4);
}

// From scores to P^T in shared memory. The maximum is exact, so that the weight of a dominant token
// is 1 and not rounded. row_factor: what the rows of O^T must be multiplied with; returns whether
// any is not 1.
template <class C>
__device__ __forceinline__ bool exponentiate(uint32_t s_base, float scale, int tid,
                                             const float (&scores)[C::kAccumulator],
                                             SoftmaxState<C>& state,
                                             float (&row_factor)[C::kThreadRows]) {
  const uint32_t s_row = weights_row(LD_SHARED(C, s_base, p), ((tid & 31) >> 4) * 8, tid);
  bool changed = false;
  uint32_t packed[4];
  // Loaded two blocks ahead: a load behind the stores of P^T would wait for them.
  constexpr int kAhead = 2;
  float2 tile_max[C::kRowBlocks8];
#pragma unroll
  for (int j = -kAhead; j < C::kRowBlocks8; ++j) {
    if (j + kAhead < C::kRowBlocks8) {
      tile_max[j + kAhead] = reduce_over_warps<C, false>(s_base, j + kAhead, tid & 3);
    }
    if (j < 0) continue;
    float base[2], p[4];
    float* factor = row_factor + 2 * j;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scaled = (i == 0 ? tile_max[j].x : tile_max[j].y) * scale;
      float& row_max = state.row_max[2 * j + i];
      const bool raise = scaled > row_max;
      factor[i] = raise ? ptx::exp2_approx(row_max - scaled) : 1.0f;
      row_max = raise ? scaled : row_max;
      changed |= raise;
      base[i] = exponent_base(row_max);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[i] = ptx::exp2_approx(fmaf(scores[4 * j + i], scale, -base[i & 1]));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& sum = state.row_sum[2 * j + i];
      sum = fmaf(sum, factor[i], p[i] + p[i + 2]);
      packed[2 * (j & 1) + i] = ptx::pack_pair<C::kIsF16>(p[2 * i], p[2 * i + 1]);
    }
    if constexpr (C::kRowBlocks8 == 1) {
      ptx::store_matrix_x2_transposed(s_row, packed[0], packed[1]);
    } else if (j & 1) {
      ptx::store_matrix_x4_transposed(s_row + (j - 1) * 1024, packed[0], packed[1], packed[2],
                                      packed[3]);
    }
  }
  return changed;
}

// Masks and the maximum of a tile's scores; a kScoreBarrier must follow.
template <class C>
__device__ __forceinline__ void mask_and_reduce(const Visibility& visibility, uint32_t s_base,
                                                int tile, int tid,
                                                float (&scores)[C::kAccumulator]) {
  if (visibility.cuts(tile)) mask_scores<C>(visibility, tile, tid, scores);
  float tile_max[C::kThreadRows];
#pragma unroll
  for (int i = 0; i < C::kThreadRows; ++i) {
    const int low = (i >> 1) * 4 + (i & 1);
    tile_max[i] = fmaxf(scores[low], scores[low + 2]);
  }
  reduce_in_warp<C, false>(tile_max, LD_SHARED(C, s_base, warp_rows), tid);
}

// (max, sum) of the segment's rows to s.row_stats, complete for all threads.
template <class C>
__device__ __forceinline__ void collect_rows(uint32_t s_base, const SoftmaxState<C>& state,
                                             int tid) {
  reduce_in_warp<C, true>(state.row_sum, LD_SHARED(C, s_base, warp_rows), tid);
  ptx::named_barrier_sync(kScoreBarrier, 128);
  if (tid < 4) {
#pragma unroll
    for (int j = 0; j < C::kRowBlocks8; ++j) {
      const float2 sum = reduce_over_warps<C, true>(s_base, j, tid);
      ptx::store_shared(LD_SHARED(C, s_base, row_stats) + (4 * j + tid) * 16,
                        make_float4(state.row_max[2 * j], sum.x, state.row_max[2 * j + 1], sum.y));
    }
  }
  ptx::named_barrier_sync(kScoreBarrier, 128);
}

template <class C>
__device__ __forceinline__ void rescale(float (&output)[C::kThreadChunks][C::kAccumulator],
                                        const float (&factor)[C::kThreadRows]) {
#pragma unroll
  for (int chunk = 0; chunk < C::kThreadChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < C::kAccumulator; ++i) {
      output[chunk][i] *= factor[(i >> 2) * 2 + (i & 1)];
    }
  }
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_COMPUTE_CUH_
