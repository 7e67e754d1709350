#include "cpu/ffd_scan_x86.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined pass-through operands of its own avx512fintrin.h for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

namespace longdecode::cpu {

#if defined(__x86_64__)

namespace {

constexpr int32_t kGroupBytes = 64;
constexpr int32_t kUnitBytes = 512;

#define LD_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define LD_AVX2 __attribute__((target("avx2")))
#define LD_INLINE __attribute__((always_inline)) inline

// A group of the code plane (64 bytes, all four units) -> the codes of one unit.
template <int kField, bool kGfni>
LD_AVX512 LD_INLINE __m512i codes_of_unit(const uint8_t* group) {
  const __m512i bytes = _mm512_loadu_si512(group);
  if constexpr (kGfni) {
    // Bit 0 of each byte from bit 2 kField, bit 1 from the next one, by a matrix of bits. Assembly,
    // so that code without GFNI can be made of the same functions.
    const __m512i matrix =
        _mm512_set1_epi64((int64_t{1} << (2 * kField) << 56) | (int64_t{2} << (2 * kField) << 48));
    __m512i codes;
    __asm__("vgf2p8affineqb $0, %2, %1, %0" : "=v"(codes) : "v"(bytes), "v"(matrix));
    return codes;
  } else {
    return _mm512_and_si512(_mm512_srli_epi16(bytes, 2 * kField), _mm512_set1_epi8(3));
  }
}

// Dot products of the groups g and g + 1 of a tile with kRows rows, 16 tokens in 32-bit lanes
// [t][g, g + 8, g, g + 8], 4 t. kPosition: the tile's place among those that share 512 bytes of
// codes, so that shifts are constants.
template <bool kGfni, int kBlocks, int kPosition, int kRows, int kBlock = 0>
LD_AVX512 LD_INLINE void dot_blocks(const uint8_t* group, const int8_t* q, __m512i (&a)[kRows],
                                    __m512i (&b)[kRows]) {
  if constexpr (kBlock < kBlocks) {
    constexpr int kUnit = kPosition * kBlocks + kBlock;
    const uint8_t* from = group + kUnit / 4 * kUnitBytes;
    const __m512i codes_a = codes_of_unit<kUnit % 4, kGfni>(from);
    const __m512i codes_b = codes_of_unit<kUnit % 4, kGfni>(from + kGroupBytes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m512i n = _mm512_load_si512(q + (r * kBlocks + kBlock) * kGroupBytes);
      __asm__("" : "+v"(n));  // one load for both groups
      a[r] = _mm512_dpbusd_epi32(a[r], codes_a, n);
      b[r] = _mm512_dpbusd_epi32(b[r], codes_b, n);
    }
    dot_blocks<kGfni, kBlocks, kPosition, kRows, kBlock + 1>(group, q, a, b);
  }
}

// Groups g .. g + 3: 32-bit lanes [g, g+8, g+1, g+9] of two t each, then those of g + 2. Sums are
// 16 bits wide up to here: a lane of dot_blocks is at most 8 * 4 * 3 * 127, and two are added.
template <bool kGfni, int kBlocks, int kPosition, int kRows>
LD_AVX512 LD_INLINE void dot_four_groups(const uint8_t* group, const int8_t* q,
                                         __m512i (&sums)[kRows]) {
  static_assert(kBlocks <= 8);
  __m512i pair[2][kRows];  // [t][g, g + 8, g, g + 8, g + 1, g + 9, g + 1, g + 9]
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    __m512i a[kRows];
    __m512i b[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) a[r] = b[r] = _mm512_setzero_si512();
    dot_blocks<kGfni, kBlocks, kPosition, kRows>(group + 2 * i * kGroupBytes, q, a, b);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) pair[i][r] = _mm512_packs_epi32(a[r], b[r]);
  }
  // Brings the two sums of a token together.
  const __m512i order = _mm512_set4_epi32(0x0F0E0B0A, 0x0D0C0908, 0x07060302, 0x05040100);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m512i both = _mm512_add_epi16(_mm512_shuffle_i64x2(pair[0][r], pair[1][r], 0x44),
                                          _mm512_shuffle_i64x2(pair[0][r], pair[1][r], 0xEE));
    sums[r] = _mm512_madd_epi16(_mm512_shuffle_epi8(both, order), _mm512_set1_epi16(1));
  }
}

template <bool kGfni, int kBlocks, int kPosition, int kRows>
LD_AVX512 LD_INLINE void scan_tile(const uint8_t* codes, const int8_t* q, const int32_t* thresholds,
                                   uint16_t* hits) {
  __m512i low[kRows];
  __m512i high[kRows];
  dot_four_groups<kGfni, kBlocks, kPosition, kRows>(codes, q, low);
  dot_four_groups<kGfni, kBlocks, kPosition, kRows>(codes + 4 * kGroupBytes, q, high);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m512i sums = _mm512_add_epi32(_mm512_shuffle_i64x2(low[r], high[r], 0x88),
                                          _mm512_shuffle_i64x2(low[r], high[r], 0xDD));
    hits[r] = _mm512_cmpge_epi32_mask(sums, _mm512_set1_epi32(thresholds[r]));
  }
}

constexpr int kMaxRowBlock = 4;

template <bool kGfni, int kBlocks, int kRows>
LD_AVX512 void scan_rows(const uint8_t* codes, int32_t tile_begin, int32_t tile_end,
                         const int8_t* q, const int32_t* thresholds, int32_t num_rows,
                         uint16_t* hits) {
  constexpr int kTilesPerStep = kBlocks % 4 == 0 ? 1 : (kBlocks % 2 == 0 ? 2 : 4);
  constexpr int kStepBytes = kTilesPerStep * kBlocks / 4 * kUnitBytes;
  for (int32_t tile = tile_begin; tile < tile_end; ++tile, hits += num_rows) {
    const uint8_t* step = codes + tile / kTilesPerStep * kStepBytes;
    switch (tile % kTilesPerStep) {
      case 0:
        scan_tile<kGfni, kBlocks, 0, kRows>(step, q, thresholds, hits);
        break;
      case 1:
        scan_tile<kGfni, kBlocks, 1 % kTilesPerStep, kRows>(step, q, thresholds, hits);
        break;
      case 2:
        scan_tile<kGfni, kBlocks, 2 % kTilesPerStep, kRows>(step, q, thresholds, hits);
        break;
      default:
        scan_tile<kGfni, kBlocks, 3 % kTilesPerStep, kRows>(step, q, thresholds, hits);
    }
  }
}

template <bool kGfni, int kBlocks>
void scan_blocks(const uint8_t* codes, int32_t tile_begin, int32_t tile_end, const FoldedRows& rows,
                 int32_t num_rows, uint16_t* hits) {
  for (int32_t r = 0; r < num_rows; r += kMaxRowBlock) {
    const int8_t* q = rows.q + r * kBlocks * kGroupBytes;
    const int32_t* thresholds = rows.thresholds + r;
    switch (num_rows - r) {
      case 1:
        scan_rows<kGfni, kBlocks, 1>(codes, tile_begin, tile_end, q, thresholds, num_rows,
                                     hits + r);
        break;
      case 2:
        scan_rows<kGfni, kBlocks, 2>(codes, tile_begin, tile_end, q, thresholds, num_rows,
                                     hits + r);
        break;
      case 3:
        scan_rows<kGfni, kBlocks, 3>(codes, tile_begin, tile_end, q, thresholds, num_rows,
                                     hits + r);
        break;
      default:
        scan_rows<kGfni, kBlocks, 4>(codes, tile_begin, tile_end, q, thresholds, num_rows,
                                     hits + r);
    }
  }
}

template <bool kGfni>
void scan_any_blocks(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin, int32_t tile_end,
                     const FoldedRows& rows, int32_t num_rows, uint16_t* hits) {
  switch (num_blocks) {
    case 2:
      return scan_blocks<kGfni, 2>(codes, tile_begin, tile_end, rows, num_rows, hits);
    case 3:
      return scan_blocks<kGfni, 3>(codes, tile_begin, tile_end, rows, num_rows, hits);
    case 4:
      return scan_blocks<kGfni, 4>(codes, tile_begin, tile_end, rows, num_rows, hits);
    default:
      return scan_blocks<kGfni, 8>(codes, tile_begin, tile_end, rows, num_rows, hits);
  }
}

// Half a group with one row: 16-bit sums of two channels; 8 blocks of them stay below 2^13.
LD_AVX2 LD_INLINE __m256i madd_half(const uint8_t* bytes, int32_t shift, const int8_t* q,
                                    __m256i sums) {
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  const __m256i codes =
      _mm256_and_si256(_mm256_srl_epi16(all, _mm_cvtsi32_si128(shift)), _mm256_set1_epi8(3));
  const __m256i n = _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
  return _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, n));
}

// A group of a tile and one row -> [g, g + 8, g, g + 8].
LD_AVX2 LD_INLINE __m128i dot_group(const uint8_t* codes, int32_t first_unit, int32_t num_blocks,
                                    int32_t group, const int8_t* q) {
  __m256i sums = _mm256_setzero_si256();
  for (int32_t block = 0; block < num_blocks; ++block) {
    const int32_t unit = first_unit + block;
    const uint8_t* bytes = codes + unit / 4 * kUnitBytes + group * kGroupBytes;
    sums = madd_half(bytes, 2 * (unit % 4), q + block * kGroupBytes, sums);
    sums = madd_half(bytes + 32, 2 * (unit % 4), q + block * kGroupBytes + 32, sums);
  }
  const __m256i words = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
  return _mm_add_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

}  // namespace

bool cpu_has_avx512_vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool cpu_has_gfni() { return __builtin_cpu_supports("gfni"); }

bool cpu_has_avx2() { return __builtin_cpu_supports("avx2"); }

void scan_tiles_avx512_gfni(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin,
                            int32_t tile_end, const FoldedRows& rows, int32_t num_rows,
                            uint16_t* hits) {
  scan_any_blocks<true>(codes, num_blocks, tile_begin, tile_end, rows, num_rows, hits);
}

void scan_tiles_avx512_vnni(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin,
                            int32_t tile_end, const FoldedRows& rows, int32_t num_rows,
                            uint16_t* hits) {
  scan_any_blocks<false>(codes, num_blocks, tile_begin, tile_end, rows, num_rows, hits);
}

LD_AVX2 void scan_tiles_avx2(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin,
                             int32_t tile_end, const FoldedRows& rows, int32_t num_rows,
                             uint16_t* hits) {
  for (int32_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int32_t r = 0; r < num_rows; ++r) {
      const int8_t* q = rows.q + r * num_blocks * kGroupBytes;
      const __m128i below = _mm_set1_epi32(rows.thresholds[r]);
      uint32_t mask = 0;
      for (int32_t g = 0; g < 8; g += 2) {
        const __m128i a = dot_group(codes, tile * num_blocks, num_blocks, g, q);
        const __m128i b = dot_group(codes, tile * num_blocks, num_blocks, g + 1, q);
        const __m128i sums = _mm_add_epi32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
        const int misses = _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(below, sums)));
        mask |= static_cast<uint32_t>(~misses & 0xf) << (2 * g);
      }
      *hits++ = static_cast<uint16_t>(mask);
    }
  }
}

#undef LD_AVX512
#undef LD_AVX2
#undef LD_INLINE

#else

bool cpu_has_avx512_vnni() { return false; }
bool cpu_has_gfni() { return false; }
bool cpu_has_avx2() { return false; }
void scan_tiles_avx512_gfni(const uint8_t*, int32_t, int32_t, int32_t, const FoldedRows&, int32_t,
                            uint16_t*) {}
void scan_tiles_avx512_vnni(const uint8_t*, int32_t, int32_t, int32_t, const FoldedRows&, int32_t,
                            uint16_t*) {}
void scan_tiles_avx2(const uint8_t*, int32_t, int32_t, int32_t, const FoldedRows&, int32_t,
                     uint16_t*) {}

#endif  // defined(__x86_64__)

}  // namespace longdecode::cpu
