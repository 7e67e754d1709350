// Quantises one page of one kv head: the same bytes as cpu/two_plane.cc, by the same fp32
// operations in the same order (no contraction where the CPU has none).
//
// A CTA has a warp for every quad (4 units of 16 tokens x 32 channels) of the page and reads every
// key once: lane 4 g + t keeps tokens g and g + 8, channels 8 t ... 8 t + 7 of each of its units.
#ifndef LONGDECODE_CUDA_KERNELS_GQA_APPEND_QUANTIZE_CUH_
#define LONGDECODE_CUDA_KERNELS_GQA_APPEND_QUANTIZE_CUH_

#include <cmath>

#include "cuda/kernels/gqa_append/convert.cuh"
#include "cuda/kernels/gqa_append/params.h"

namespace longdecode::cuda::gqa_append {

inline constexpr int kMaxPlaneDim = 256;
inline constexpr int kMaxQuads = 16;  // page 128, 256 channels
inline constexpr int kUnitBytes = 512;

struct QuantizeStorage {
  uint32_t lowest[4 * kMaxQuads][16], highest[4 * kMaxQuads][16];  // [unit][pair of channels]
  float zero[kMaxPlaneDim], scale[kMaxPlaneDim], offset[kMaxPlaneDim];
};

template <DType kDType, bool kMax>
__device__ __forceinline__ uint32_t extreme_pair(uint32_t a, uint32_t b) {
  if constexpr (kDType == DType::kF16) {
    const __half2 x = reinterpret_cast<const __half2&>(a), y = reinterpret_cast<const __half2&>(b);
    const __half2 r = kMax ? __hmax2_nan(x, y) : __hmin2_nan(x, y);
    return reinterpret_cast<const uint32_t&>(r);
  } else {
    const __nv_bfloat162 x = reinterpret_cast<const __nv_bfloat162&>(a);
    const __nv_bfloat162 y = reinterpret_cast<const __nv_bfloat162&>(b);
    const __nv_bfloat162 r = kMax ? __hmax2_nan(x, y) : __hmin2_nan(x, y);
    return reinterpret_cast<const uint32_t&>(r);
  }
}

// The stored grid of a channel: see choose_grid of cpu/two_plane.h.
struct Grid {
  uint16_t step_bits = 0, zero_bits = 0;

  __device__ __forceinline__ float step() const { return to_float<DType::kBF16>(step_bits); }
  __device__ __forceinline__ float zero() const {
    return __fmul_rn(step(), to_float<DType::kF16>(zero_bits));
  }
};

__device__ __forceinline__ uint16_t bf16_at_least(float value) {
  const uint16_t bits = to_bits<DType::kBF16>(value);
  return to_float<DType::kBF16>(bits) < value ? static_cast<uint16_t>(bits + 1) : bits;
}

__device__ __forceinline__ Grid choose_grid(float lowest, float highest) {
  constexpr float kMinStep = 0x1p-100f, kMaxZero = 4096.0f;
  Grid grid;
  if (!isfinite(lowest) || !isfinite(highest)) {
    grid.step_bits = 0x7fc0;
    return grid;
  }
  if (lowest == 0.0f && highest == 0.0f) return grid;
  const float middle = __fadd_rn(__fmul_rn(0.5f, highest), __fmul_rn(0.5f, lowest));
  const float quarter = __fsub_rn(__fmul_rn(0.25f, highest), __fmul_rn(0.25f, lowest));
  float step = fmaxf(fmaxf(quarter, __fmul_rn(fabsf(middle), 0.5f / kMaxZero)), kMinStep);
  for (;;) {
    grid.step_bits = bf16_at_least(step);
    step = grid.step();
    grid.zero_bits = to_bits<DType::kF16>(__fdiv_rn(middle, step));
    const float zero = grid.zero();
    const float two_steps = __fmul_rn(2.0f, step);
    if (__fsub_rn(highest, zero) <= two_steps && __fsub_rn(lowest, zero) >= -two_steps) return grid;
    step = __fmul_rn(step, 1.03125f);
  }
}

// Minima and maxima of the warp's units into s.lowest, s.highest.
template <DType kDType>
__device__ __forceinline__ void reduce_units(const uint4 (&raw)[4][2], int warp, int lane,
                                             QuantizeStorage& s) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 a = raw[i][0], b = raw[i][1];
    const uint32_t first[4] = {a.x, a.y, a.z, a.w}, second[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t low = extreme_pair<kDType, false>(first[pair], second[pair]);
      uint32_t high = extreme_pair<kDType, true>(first[pair], second[pair]);
#pragma unroll
      for (int offset = 4; offset < 32; offset <<= 1) {
        low = extreme_pair<kDType, false>(low, __shfl_xor_sync(0xffffffffu, low, offset));
        high = extreme_pair<kDType, true>(high, __shfl_xor_sync(0xffffffffu, high, offset));
      }
      if (lane < 4) {
        s.lowest[4 * warp + i][4 * lane + pair] = low;
        s.highest[4 * warp + i][4 * lane + pair] = high;
      }
    }
  }
}

// The grid of channel threadIdx.x into the chunk and what quantising needs into s.
template <DType kDType>
__device__ __forceinline__ void make_grid(const Params& p, uint8_t* g_chunk, QuantizeStorage& s) {
  const int channel = threadIdx.x;
  if (channel >= 32 * p.num_blocks) return;
  const int block = channel / 32, pair = channel % 32 / 2, shift = 16 * (channel % 2);
  float lowest = INFINITY, highest = -INFINITY;
  bool is_nan = false;
  for (int unit = block; unit < p.page_size / 16 * p.num_blocks; unit += p.num_blocks) {
    const float low = to_float<kDType>(static_cast<uint16_t>(s.lowest[unit][pair] >> shift));
    const float high = to_float<kDType>(static_cast<uint16_t>(s.highest[unit][pair] >> shift));
    is_nan |= isnan(low) || isnan(high);
    lowest = fminf(lowest, low);
    highest = fmaxf(highest, high);
  }
  const Grid grid = choose_grid(is_nan ? NAN : lowest, highest);
  reinterpret_cast<uint16_t*>(g_chunk + p.step_offset_bytes)[channel] = grid.step_bits;
  reinterpret_cast<uint16_t*>(g_chunk + p.zero_offset_bytes)[channel] = grid.zero_bits;
  const float step = grid.step();
  const bool has_grid = step > 0.0f;  // false for NaN too
  s.zero[channel] = has_grid ? grid.zero() : 0.0f;
  s.scale[channel] = has_grid ? __fdiv_rn(256.0f, step) : 0.0f;
  s.offset[channel] = has_grid ? 512.0f : 0.0f;
}

// 4 channels from `channel` on of one token: residuals as bytes; codes, shifted, are or-ed to
// `codes`.
template <DType kDType>
__device__ __forceinline__ uint32_t quantize_4(uint32_t low_pair, uint32_t high_pair, int channel,
                                               int code_shift, const QuantizeStorage& s,
                                               uint32_t& codes) {
  const float4 zero = *reinterpret_cast<const float4*>(s.zero + channel);
  const float4 scale = *reinterpret_cast<const float4*>(s.scale + channel);
  const float4 offset = *reinterpret_cast<const float4*>(s.offset + channel);
  const float keys[4] = {to_float<kDType>(static_cast<uint16_t>(low_pair)),
                         to_float<kDType>(static_cast<uint16_t>(low_pair >> 16)),
                         to_float<kDType>(static_cast<uint16_t>(high_pair)),
                         to_float<kDType>(static_cast<uint16_t>(high_pair >> 16))};
  const float zeros[4] = {zero.x, zero.y, zero.z, zero.w};
  const float scales[4] = {scale.x, scale.y, scale.z, scale.w};
  const float offsets[4] = {offset.x, offset.y, offset.z, offset.w};
  uint32_t residuals = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float x = __fmaf_rn(__fsub_rn(keys[i], zeros[i]), scales[i], offsets[i]);
    const auto n = static_cast<uint32_t>(x > 0.0f ? fminf(x, 1023.0f) : 0.0f);  // NaN becomes 0
    residuals |= (n & 255u) << (8 * i);
    codes |= (n >> 8) << (8 * i + code_shift);
  }
  return residuals;
}

// load(token of the page, channel) returns 8 keys in kDType, zeros for channels beyond the head's.
template <DType kDType, class Load>
__device__ __forceinline__ void quantize_page(const Params& p, const Load& load, uint8_t* g_chunk,
                                              uint8_t* g_residuals, QuantizeStorage& s) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const bool has_quad = warp < p.page_size * p.num_blocks / 64;
  uint4 raw[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int unit = 4 * warp + i, tile = unit / p.num_blocks;
    const int channel = 32 * (unit - tile * p.num_blocks) + 8 * (lane & 3);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      raw[i][half] =
          has_quad ? load(16 * tile + (lane >> 2) + 8 * half, channel) : make_uint4(0, 0, 0, 0);
    }
  }
  if (has_quad) reduce_units<kDType>(raw, warp, lane, s);
  __syncthreads();
  make_grid<kDType>(p, g_chunk, s);
  __syncthreads();
  if (!has_quad) return;
  uint32_t codes[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int unit = 4 * warp + i;
    const int channel = 32 * (unit % p.num_blocks) + 8 * (lane & 3);
    const uint4 a = raw[i][0], b = raw[i][1];
    uint4 residuals;
    residuals.x = quantize_4<kDType>(a.x, a.y, channel, 2 * i, s, codes[0]);
    residuals.y = quantize_4<kDType>(b.x, b.y, channel, 2 * i, s, codes[1]);
    residuals.z = quantize_4<kDType>(a.z, a.w, channel + 4, 2 * i, s, codes[2]);
    residuals.w = quantize_4<kDType>(b.z, b.w, channel + 4, 2 * i, s, codes[3]);
    *reinterpret_cast<uint4*>(g_residuals + unit * kUnitBytes + 16 * lane) = residuals;
  }
  *reinterpret_cast<uint4*>(g_chunk + warp * kUnitBytes + 16 * lane) =
      make_uint4(codes[0], codes[1], codes[2], codes[3]);
}

}  // namespace longdecode::cuda::gqa_append

#endif  // LONGDECODE_CUDA_KERNELS_GQA_APPEND_QUANTIZE_CUH_
