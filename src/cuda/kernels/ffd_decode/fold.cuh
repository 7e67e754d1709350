// The query folded with the constants of a page.
//
// f_c = q_c step_c, and the score of a key, before softmax_scale, is
//   sum_c f_c (zero_c - 2) + f_c (n_c + 1/2) / 256,  n = 256 code + residual,
// or, with 2 bits, sum_c f_c (zero_c - 3/2) + f_c code_c. Lane 4 g + t holds channels 32 i + 8 t
// .. + 7 of row g for every block i: the order of the planes and of the B operands.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_FOLD_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_FOLD_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels/ffd_decode/config.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/memory.cuh"

namespace longdecode::cuda::ffd {

__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ float2 unpack_f16(uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
template <bool kIsF16>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return kIsF16 ? unpack_f16(pair) : unpack_bf16(pair);
}
__device__ __forceinline__ uint32_t word(const int4& v, int i) {
  return static_cast<uint32_t>(i == 0 ? v.x : (i == 1 ? v.y : (i == 2 ? v.z : v.w)));
}

// The query row that a lane folds: row g, or row g % 4 and half of the blocks. In registers where
// they are half as many.
template <class C>
class LaneQuery {
 public:
  __device__ __forceinline__ void load(uint32_t s_query, int row_block, int lane) {
    const int g = lane >> 2;
    const int row = row_block * 8 + C::row_of_column(g);
    s_row_ = s_query + row * (2 * C::kDim) + 16 * (lane & 3) + 64 * first_block(g);
    if constexpr (C::kTwoLanesFold) {
#pragma unroll
      for (int i = 0; i < C::kFoldBlocks; ++i) read(i, q_ + 8 * i);
    }
  }
  // The lane's 8 channels of its block i.
  __device__ __forceinline__ void get(int i, float (&q)[8]) const {
    if constexpr (C::kTwoLanesFold) {
#pragma unroll
      for (int j = 0; j < 8; ++j) q[j] = q_[8 * i + j];
    } else {
      read(i, q);
    }
  }
  static __device__ __forceinline__ int first_block(int g) {
    return C::kTwoLanesFold && g >= 4 ? C::kFoldBlocks : 0;
  }

 private:
  __device__ __forceinline__ void read(int i, float* q) const {
    const int4 v = C::shared_int4(s_row_ + 64 * i);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 pair = unpack<C::kIsF16>(word(v, w));
      q[2 * w] = pair.x;
      q[2 * w + 1] = pair.y;
    }
  }

  uint32_t s_row_ = 0;
  float q_[C::kTwoLanesFold ? 8 * C::kFoldBlocks : 1] = {};
};

// Over the lanes that fold the same row.
template <class C>
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
  return C::kTwoLanesFold ? fmaxf(x, __shfl_xor_sync(kFullWarp, x, 16)) : x;
}
template <class C>
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  x += __shfl_xor_sync(kFullWarp, x, 2);
  return C::kTwoLanesFold ? x + __shfl_xor_sync(kFullWarp, x, 16) : x;
}

// For the scan of one page and one block of 8 rows: f_c rounded to 8 bits with a scale per row,
// 127 = max |f_c|, and what a sum of n_c code_c has to reach.
template <class C>
struct ScanQuery {
  uint32_t b[2 * C::kBlocks];
  // The even accumulator of columns 2 t, 2 t + 1 starts here, in sixteenths.
  int start_0, start_1;
};

// No sum of 3 * 127 * 256 reaches it; times 64 it is an int32.
inline constexpr int kNever = 1 << 20;
// The smallest max |f_c| that is not taken for 0.
inline constexpr float kMinFold = 1e-30f;

// f of the lane's channels of one page; largest and sums over the lane's channels.
template <class C>
class FoldedSteps {
 public:
  float largest;   // |f_c|
  float zero_dot;  // f_c zero_c
  float sum;       // f_c

  // s_constants: steps, then zeros.
  __device__ __forceinline__ FoldedSteps(const LaneQuery<C>& query, uint32_t s_constants, int lane)
      : query_(query),
        s_steps_(s_constants + 16 * (lane & 3) + 64 * LaneQuery<C>::first_block(lane >> 2)) {
    // Several short chains instead of one.
    float tops[2] = {0.0f, 0.0f}, dots[4] = {0.0f, 0.0f, 0.0f, 0.0f}, sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < C::kFoldBlocks; ++i) {
      float f[8];
      fold(i, f);
      const int4 zeros = this->zeros(i);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 zero = unpack_f16(word(zeros, w));
        const float a = f[2 * w], b = f[2 * w + 1];
        tops[w % 2] = fmaxf(tops[w % 2], fmaxf(fabsf(a), fabsf(b)));
        dots[w] = fmaf(b, zero.y, fmaf(a, zero.x, dots[w]));
        sums[w % 2] += a + b;
      }
      if constexpr (kKeeps) {
#pragma unroll
        for (int j = 0; j < 8; ++j) f_[8 * i + j] = f[j];
      }
    }
    largest = fmaxf(tops[0], tops[1]);
    zero_dot = (dots[0] + dots[1]) + (dots[2] + dots[3]);
    sum = sums[0] + sums[1];
  }

  // f of the lane's block i.
  __device__ __forceinline__ void get(int i, float (&f)[8]) const {
    if constexpr (kKeeps) {
#pragma unroll
      for (int j = 0; j < 8; ++j) f[j] = f_[8 * i + j];
    } else {
      fold(i, f);
    }
  }
  __device__ __forceinline__ int4 zeros(int i) const {
    return C::shared_int4(s_steps_ + 64 * i + 2 * C::kDim);
  }

 private:
  // 64 channels would take too many registers, and nvcc 13.0 does not end compiling a single block:
  // they are folded again where they are used.
  static constexpr bool kKeeps = C::kFoldBlocks > 1 && C::kFoldBlocks <= 4;

  __device__ __forceinline__ void fold(int i, float (&f)[8]) const {
    const int4 steps = C::shared_int4(s_steps_ + 64 * i);
    query_.get(i, f);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 step = unpack_bf16(word(steps, w));
      f[2 * w] *= step.x;
      f[2 * w + 1] *= step.y;
    }
  }

  const LaneQuery<C>& query_;
  const uint32_t s_steps_;
  float f_[kKeeps ? 8 * C::kFoldBlocks : 1];
};

// What a score may lie below the threshold and still be a candidate, before softmax_scale:
// margin_sigmas deviations of the 2-bit noise.
template <class C>
__device__ __forceinline__ float sigmas_margin(const Params& p, const FoldedSteps<C>& folded) {
  float squares[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < C::kFoldBlocks; ++i) {
    float f[8];
    folded.get(i, f);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares[j % 2] = fmaf(f[j], f[j], squares[j % 2]);
  }
  const float sum = row_sum<C>(squares[0] + squares[1]);
  return p.margin_sigmas * ptx::sqrt_approx(sum * (1.0f / 12.0f));
}

// Half a step per channel between scan and exact value, 1.5 steps of query rounding, and the fp32
// rounding of all sums.
template <class C>
__device__ __forceinline__ float certified_margin(const FoldedSteps<C>& folded, float unit,
                                                  float scale) {
  float lengths = 0.0f, zero_lengths = 0.0f, errors = 0.0f;
#pragma unroll
  for (int i = 0; i < C::kFoldBlocks; ++i) {
    float block[8];
    folded.get(i, block);
    const int4 zeros = folded.zeros(i);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float f = block[j];
      const float2 zero = unpack_f16(word(zeros, j / 2));
      lengths += fabsf(f);
      zero_lengths += fabsf(f * (j % 2 == 0 ? zero.x : zero.y));
      errors += fabsf(f - unit * rintf(f * scale));
    }
  }
  lengths = row_sum<C>(lengths);
  zero_lengths = row_sum<C>(zero_lengths);
  return 0.5f * lengths + 1.5f * row_sum<C>(errors) + 0x1p-17f * (lengths + zero_lengths);
}

// A page's fold for the scan; what depends on the pseudo-max comes last.
template <class C>
class PageFold {
 public:
  __device__ __forceinline__ PageFold(const Params& p, const LaneQuery<C>& query,
                                      uint32_t s_constants, int lane) {
    const FoldedSteps<C> folded(query, s_constants, lane);
    const float largest = row_max<C>(folded.largest);
    is_flat_ = !(largest > kMinFold);
    inverse_ = is_flat_ ? 1.0f : 127.0f * ptx::reciprocal_approx(largest);
    const float scale = is_flat_ ? 0.0f : inverse_;
    margin_ = 0.0f;
    if (p.certified) {
      margin_ = certified_margin<C>(folded, is_flat_ ? 0.0f : largest * (1.0f / 127.0f), scale);
    } else if (p.margin_sigmas > 0.0f) {
      margin_ = sigmas_margin<C>(p, folded);
    }
    int n_sum = 0;
#pragma unroll
    for (int i = 0; i < C::kFoldBlocks; ++i) {
      float f[8];
      folded.get(i, f);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t n[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          // 1.5 * 2^23 + x has round(x) in its low bits. |x| <= 127 and a rounding: it saturates.
          n[j] = __float_as_uint(fmaf(f[4 * half + j], scale, 12582912.0f));
        }
        const uint32_t packed =
            __byte_perm(__byte_perm(n[0], n[1], 0x0040), __byte_perm(n[2], n[3], 0x0040), 0x5410);
        query_.b[2 * i + half] = packed;
        n_sum = __dp4a(static_cast<int>(packed), 0x01010101, n_sum);
      }
    }
    offset_ = row_sum<C>(fmaf(1.5f, static_cast<float>(n_sum), -folded.zero_dot * inverse_));
    if constexpr (C::kTwoLanesFold) {
      // Columns 4 to 7 are nobody's, so lanes of the other half may hold their blocks in any order.
#pragma unroll
      for (int i = 0; i < 2 * C::kFoldBlocks; ++i) {
        query_.b[2 * C::kFoldBlocks + i] = __shfl_xor_sync(kFullWarp, query_.b[i], 16);
      }
    }
  }

  // needed: the score, before softmax_scale, that makes a token a candidate for the lane's row;
  // infinity: nothing does.
  __device__ __forceinline__ const ScanQuery<C>& query(float needed, int lane) {
    const bool is_row = needed < INFINITY;
    needed -= margin_;
    const float reach = fmaf(needed, inverse_, offset_);
    // Never misses for the rounding of these sums: a few hundredths of a unit at most.
    const float slack = 0x1p-20f * (fabsf(needed * inverse_) + fabsf(offset_)) + 0.05f;
    int threshold = -kNever;  // NaN: everything is a candidate
    if (reach - slack > (is_flat_ ? 0.0f : static_cast<float>(-kNever))) {
      threshold = is_flat_ || reach >= kNever ? kNever : __float2int_ru(reach - slack);
    }
    if (!is_row || (C::kTwoLanesFold && lane >= 16)) threshold = kNever;
    const int t = lane & 3;
    query_.start_0 = -16 * __shfl_sync(kFullWarp, threshold, 8 * t);
    query_.start_1 = -16 * __shfl_sync(kFullWarp, threshold, 8 * t + 4);
    return query_;
  }

 private:
  ScanQuery<C> query_;
  bool is_flat_;
  float inverse_, margin_, offset_;
};

// For exact scores of one block of rows, quantised keys: f times a power of two as two fp16 parts,
// exact: `high` + `low`, or, of 4 rows, columns g < 4 have the high parts and columns g + 4 the low
// parts of the same rows in `high`. Unquantised keys: `high` is the query itself, `low` is 0, and
// columns 4 to 7 of 4 rows are 0.
template <class C>
struct ExactQuery {
  // Set here, or they count as used, and take registers, from the start of the kernel on.
  uint32_t high[4 * C::kBlocks] = {};
  uint32_t low[C::kTwoLanesFold ? 1 : 4 * C::kBlocks] = {};
  // Rows of the columns 2 t, 2 t + 1: score = sum * factor + offset.
  float factor_0 = 0.0f, factor_1 = 0.0f, offset_0 = 0.0f, offset_1 = 0.0f;

  __device__ __forceinline__ void load(uint32_t s_query, int row_block, int lane) {
    const uint32_t s_row =
        s_query + (row_block * 8 + (lane >> 2)) * (2 * C::kDim) + 16 * (lane & 3);
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i) {
      const int4 v = C::shared_int4(s_row + 64 * i);
#pragma unroll
      for (int w = 0; w < 4; ++w) high[4 * i + w] = word(v, w);
    }
    factor_0 = factor_1 = 1.0f;
    offset_0 = offset_1 = 0.0f;
  }

  __device__ __forceinline__ void fold(uint32_t s_query, int row_block, uint32_t s_constants,
                                       int lane) {
    LaneQuery<C> lane_query;
    lane_query.load(s_query, row_block, lane);
    const FoldedSteps<C> folded(lane_query, s_constants, lane);
    const float largest = row_max<C>(folded.largest);
    const float offset = row_sum<C>(fmaf(folded.sum, 0.5f / 256.0f - 2.0f, folded.zero_dot));
    // Largest part below 2^14.
    int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    exponent = min(max(exponent, -100), 120);
    const float scale = __uint_as_float(static_cast<uint32_t>(127 + 13 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < C::kFoldBlocks; ++i) {
      float f[8];
      folded.get(i, f);
#pragma unroll
      for (int w = 0; w < 4; ++w) split(4 * i + w, f[2 * w] * scale, f[2 * w + 1] * scale, lane);
    }
    // n is used as the bits of an fp16 subnormal, n * 2^-24; a 2-bit step is 256 of it.
    const float factor = __uint_as_float(static_cast<uint32_t>(127 + 3 + exponent) << 23);
    const int from = 4 * C::row_of_column(2 * (lane & 3));
    factor_0 = __shfl_sync(kFullWarp, factor, from);
    factor_1 = __shfl_sync(kFullWarp, factor, from + 4);
    offset_0 = __shfl_sync(kFullWarp, offset, from);
    offset_1 = __shfl_sync(kFullWarp, offset, from + 4);
  }

 private:
  // The parts of pair i of the lane's channels.
  __device__ __forceinline__ void split(int i, float a, float b, int lane) {
    const uint32_t upper = ptx::pack_pair<true>(a, b);
    const float2 rounded = unpack_f16(upper);
    const uint32_t lower = ptx::pack_pair<true>(a - rounded.x, b - rounded.y);
    if constexpr (C::kTwoLanesFold) {
      // Lane g has the first half of the blocks of row g, lane g + 4 the second; each keeps one
      // part of its half and gets the same part of the other.
      const bool is_high = lane < 16;
      const uint32_t other = __shfl_xor_sync(kFullWarp, is_high ? lower : upper, 16);
      high[i] = is_high ? upper : other;
      high[4 * C::kFoldBlocks + i] = is_high ? other : lower;
    } else {
      high[i] = upper;
      low[i] = lower;
    }
  }
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_FOLD_CUH_
