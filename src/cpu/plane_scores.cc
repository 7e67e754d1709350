#include "cpu/plane_scores.h"

#include "cpu/ffd_scan_x86.h"
#include "cpu/tile_attention.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined pass-through operands of its own avx512fintrin.h for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#define LD_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")))
#define LD_INLINE __attribute__((always_inline)) inline

namespace longdecode::cpu {
namespace {

constexpr int32_t kGroupBytes = 64;
constexpr int32_t kUnitBytes = 512;
constexpr int32_t kRows = 4;
constexpr int32_t kLanes = 32;  // of 16 bits
// 2047.5 * 4096, less what rounding may add: parts of 12 bits.
constexpr float kLargest = 8386000.0f;
constexpr float kMinFold = 1e-30f;  // below it a row's f count as zero

// out[i] = the lanes of v[i] added up.
LD_AVX512 LD_INLINE __m128 sums_of(const __m512 (&v)[kRows]) {
  const __m512 s01 = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 s23 = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(s01), _mm512_castps_pd(s23));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(s01), _mm512_castps_pd(s23));
  const __m512 s = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// 32 channels of one part of F -> the two vectors that meet the lower and the upper words of a
// group once its bytes are unpacked: 128-bit lane l has word 2 l (2 l + 1), for the tokens g and
// g + 8 the same.
LD_AVX512 LD_INLINE void store_words(__m512i channels, int16_t* lower, int16_t* upper) {
  const __m512i even = _mm512_set_epi64(6, 6, 4, 4, 2, 2, 0, 0);
  const __m512i odd = _mm512_set_epi64(7, 7, 5, 5, 3, 3, 1, 1);
  _mm512_store_si512(lower, _mm512_permutexvar_epi64(even, channels));
  _mm512_store_si512(upper, _mm512_permutexvar_epi64(odd, channels));
}

// Products of one block for two groups and four rows, both parts.
LD_AVX512 LD_INLINE void multiply_block(const uint8_t* residual, const uint8_t* code, __m128i shift,
                                        const int16_t* f, __m512i (&sums)[2][kRows][2]) {
  const __m512i mask = _mm512_set1_epi8(3);
  __m512i n[2][2];  // [group][half]
#pragma GCC unroll 2
  for (int g = 0; g < 2; ++g) {
    const __m512i low = _mm512_loadu_si512(residual + g * kGroupBytes);
    const __m512i bytes = _mm512_loadu_si512(code + g * kGroupBytes);
    const __m512i high = _mm512_and_si512(_mm512_srl_epi16(bytes, shift), mask);
    n[g][0] = _mm512_unpacklo_epi8(low, high);
    n[g][1] = _mm512_unpackhi_epi8(low, high);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        __m512i x = _mm512_load_si512(f + ((half * kRows + r) * 2 + part) * kLanes);
        __asm__("" : "+v"(x));  // one load for both groups
        sums[0][r][part] = _mm512_dpwssd_epi32(sums[0][r][part], n[0][half], x);
        sums[1][r][part] = _mm512_dpwssd_epi32(sums[1][r][part], n[1][half], x);
      }
    }
  }
}

LD_AVX512 LD_INLINE __m512 join_parts(const __m512i (&parts)[2]) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(parts[1]), _mm512_set1_ps(4096.0f),
                         _mm512_cvtepi32_ps(parts[0]));
}

// Lanes of a: 128-bit lanes of [g, g, g + 8, g + 8]; of b the same of g + 1. -> [g, g+8, g+1, g+9].
LD_AVX512 LD_INLINE __m512 fold_pair(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
}

LD_AVX512 LD_INLINE __m512 add_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}

}  // namespace

bool PlaneScores::serves(const DecodeDesc& desc, const DeviceInfo& device) {
  const int64_t rows = int64_t{desc.num_q_heads} / desc.format.num_kv_heads * desc.max_query_len;
  return rows <= kMaxRows && device.has_avx512_vnni && cpu_has_avx512_vnni() &&
         std::string_view(dispatched_isa()) == "avx512";
}

bool PlaneScores::take_page(const uint8_t* chunk) {
  PageGrid grid;
  load_page_grid(format_, chunk, grid);
  for (int32_t first = 0; first < num_rows_; first += kRowChunk) {
    if (!fold(grid, first, folded_[first / kRowChunk])) return false;
  }
  return true;
}

LD_AVX512 bool PlaneScores::fold(const PageGrid& grid, int32_t first_row, Folded& folded) const {
  const int32_t dim = format_.padded_dim();
  const float* q[kRows];
  for (int32_t r = 0; r < kRows; ++r) {
    q[r] = q_ + int64_t{std::min(first_row + r, num_rows_ - 1)} * dim;
  }
  __m512 zero_dots[kRows];
  __m512 largest[kRows];
  for (int32_t r = 0; r < kRows; ++r) zero_dots[r] = largest[r] = _mm512_setzero_ps();
  for (int32_t c = 0; c < dim; c += 16) {
    const __m512 zero = _mm512_load_ps(grid.zero + c);
    const __m512 step = _mm512_load_ps(grid.step + c);
    for (int32_t r = 0; r < kRows; ++r) {
      const __m512 qc = _mm512_load_ps(q[r] + c);
      zero_dots[r] = _mm512_fmadd_ps(qc, zero, zero_dots[r]);
      largest[r] = _mm512_max_ps(largest[r], _mm512_abs_ps(_mm512_mul_ps(qc, step)));
    }
  }
  float zero_dot[kRows];
  _mm_storeu_ps(zero_dot, sums_of(zero_dots));
  const __m512i half = _mm512_set1_epi32(2048);
  for (int32_t r = 0; r < kRows; ++r) {
    const float max = _mm512_reduce_max_ps(largest[r]);
    // A NaN or an infinity among steps or queries makes one of the two.
    if (!std::isfinite(max) || !std::isfinite(zero_dot[r])) return false;
    const bool is_zero = max < kMinFold;
    const __m512 inverse = _mm512_set1_ps(is_zero ? 0.0f : kLargest / max);
    __m512i starts[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int32_t c = 0; c < dim; c += 32) {
      __m512i x[2];
      for (int i = 0; i < 2; ++i) {
        const __m512 step = _mm512_load_ps(grid.step + c + 16 * i);
        const __m512 f = _mm512_mul_ps(_mm512_load_ps(q[r] + c + 16 * i), step);
        x[i] = _mm512_cvtps_epi32(_mm512_mul_ps(f, inverse));
      }
      // F = 4096 * upper + lower, -2048 <= lower < 2048.
      const __m512i upper0 = _mm512_srai_epi32(_mm512_add_epi32(x[0], half), 12);
      const __m512i upper1 = _mm512_srai_epi32(_mm512_add_epi32(x[1], half), 12);
      const __m512i lower0 = _mm512_sub_epi32(x[0], _mm512_slli_epi32(upper0, 12));
      const __m512i lower1 = _mm512_sub_epi32(x[1], _mm512_slli_epi32(upper1, 12));
      const __m512i parts[2] = {
          _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(lower0)),
                             _mm512_cvtepi32_epi16(lower1), 1),
          _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(upper0)),
                             _mm512_cvtepi32_epi16(upper1), 1)};
      for (int part = 0; part < 2; ++part) {
        int16_t* words = folded.f + ((c / 32 * 2 * kRows + r) * 2 + part) * kLanes;
        int16_t* upper = words + kRows * 2 * kLanes;
        store_words(parts[part], words, upper);
        const __m512i factor = _mm512_set1_epi16(-511);
        starts[part] = _mm512_dpwssd_epi32(starts[part], _mm512_load_si512(words), factor);
        starts[part] = _mm512_dpwssd_epi32(starts[part], _mm512_load_si512(upper), factor);
      }
    }
    _mm512_store_si512(folded.start + 2 * r * 16, starts[0]);
    _mm512_store_si512(folded.start + (2 * r + 1) * 16, starts[1]);
    folded.unit[r] = is_zero ? 0.0f : max / (kLargest * 256.0f);
    // Each channel is there for two tokens, 511 times.
    const float sum = _mm512_reduce_add_ps(join_parts(starts)) * (-0.5f / 511.0f);
    folded.base[r] = zero_dot[r] - 0.5f * folded.unit[r] * sum;
  }
  return true;
}

LD_AVX512 void PlaneScores::score(const uint8_t* chunk, const uint8_t* residuals, int32_t tile,
                                  float* scores, TilePrefetch& keys_ahead,
                                  TilePrefetch& values_ahead) const {
  constexpr int32_t kPairs = 4;  // of groups
  constexpr int32_t kSteps = kTileCapacity / kTileTokens * kPairs;
  const int32_t num_blocks = format_.num_blocks();
  const int32_t first_unit = tile * num_blocks;
  // Bits 4 i .. 4 i + 3 of a hit mask's order: tokens 2 i, 2 i + 8, 2 i + 1, 2 i + 9.
  const __m512i tokens = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
  for (int32_t first = 0; first < num_rows_; first += kRowChunk) {
    const Folded& folded = folded_[first / kRowChunk];
    __m512 pairs[kPairs][kRows];
    for (int32_t pair = 0; pair < kPairs; ++pair) {
      if (first == 0) {
        keys_ahead.advance(TilePrefetch::kWhole / kSteps);
        values_ahead.advance(TilePrefetch::kWhileScoring / kSteps);
      }
      __m512i sums[2][kRows][2];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int part = 0; part < 2; ++part) {
          sums[0][r][part] = sums[1][r][part] =
              _mm512_load_si512(folded.start + (2 * r + part) * 16);
        }
      }
      for (int32_t block = 0; block < num_blocks; ++block) {
        const int32_t unit = first_unit + block;
        const int32_t at = 2 * pair * kGroupBytes;
        multiply_block(residuals + int64_t{unit} * kUnitBytes + at,
                       chunk + unit / 4 * kUnitBytes + at, _mm_cvtsi32_si128(2 * (unit % 4)),
                       folded.f + block * 2 * kRows * 2 * kLanes, sums);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        pairs[pair][r] = fold_pair(join_parts(sums[0][r]), join_parts(sums[1][r]));
      }
    }
    const int32_t count = std::min(kRowChunk, num_rows_ - first);
    for (int32_t r = 0; r < count; ++r) {
      const __m512 sums = add_lanes(pairs[0][r], pairs[1][r], pairs[2][r], pairs[3][r]);
      const __m512 row =
          _mm512_fmadd_ps(sums, _mm512_set1_ps(folded.unit[r]), _mm512_set1_ps(folded.base[r]));
      _mm512_storeu_ps(scores + int64_t{first + r} * kTileCapacity,
                       _mm512_permutexvar_ps(tokens, row));
    }
  }
}

}  // namespace longdecode::cpu

#undef LD_AVX512
#undef LD_INLINE

#else

namespace longdecode::cpu {

bool PlaneScores::serves(const DecodeDesc&, const DeviceInfo&) { return false; }

// Nothing here is called then.
bool PlaneScores::take_page(const uint8_t*) { return false; }
void PlaneScores::score(const uint8_t*, const uint8_t*, int32_t, float*, TilePrefetch&,
                        TilePrefetch&) const {}

}  // namespace longdecode::cpu

#endif  // defined(__x86_64__)
