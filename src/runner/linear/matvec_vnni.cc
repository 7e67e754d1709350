// AVX512-VNNI: 4-bit to 8-bit weights as unsigned bytes times x as two signed bytes. One row at a
// time is enough: x stays in the first-level cache, and a block costs fewer cycles than its bytes
// take to arrive. A lane's int32 becomes fp32 block by block, times d_w * d_x.
#include "runner/linear/matvec_kernels.h"

#if defined(__x86_64__)
#include <cstddef>
#include <cstring>

#include "runner/linear/vnni-inl.h"
#endif

namespace longdecode::runner {

#if defined(__x86_64__)

namespace {

// How far ahead of a block to ask for memory. The hardware's own prefetching stops at every 4 KiB
// page.
constexpr int64_t kPrefetchBytes = 4096;

template <int64_t kBytes>
LD_VNNI LD_INLINE void prefetch(const uint8_t* at) {
  for (int64_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchBytes + i), _MM_HINT_T0);
  }
}

LD_VNNI LD_INLINE __m256i load_256(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

LD_VNNI LD_INLINE __m128i load_128(const void* at) {
  return _mm_loadu_si128(static_cast<const __m128i*>(at));
}

LD_VNNI LD_INLINE __m512i low_nibbles(__m512i bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}

LD_VNNI LD_INLINE __m512i high_nibbles(__m512i bytes) {
  return low_nibbles(_mm512_srli_epi16(bytes, 4));
}

LD_VNNI LD_INLINE float half_to_float(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

// sum + d * (the lanes' int32).
LD_VNNI LD_INLINE __m512 add_scaled(__m512 sum, __m512i lanes, __m512 d) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(lanes), d, sum);
}

// The lanes' sums of q * x over 4 blocks' nibbles; `start` is added.
LD_VNNI LD_INLINE __m512i dot_packed(__m512i start, __m512i packed, const XNibbles& x) {
  const __m512i w0 = low_nibbles(packed);
  const __m512i w1 = high_nibbles(packed);
  __m512i high = _mm512_setzero_si512();
  high = _mm512_dpbusd_epi32(high, w0, _mm512_load_si512(x.high[0]));
  high = _mm512_dpbusd_epi32(high, w1, _mm512_load_si512(x.high[1]));
  start = _mm512_dpbusd_epi32(start, w0, _mm512_load_si512(x.low[0]));
  start = _mm512_dpbusd_epi32(start, w1, _mm512_load_si512(x.low[1]));
  return join(high, start);
}

// The formats: dot() returns the product of one row with x, spread over 16 lanes.

struct RowQ4_1 {
  using X = XNibbles;

  // 20 dwords of 4 blocks: 0 .. 15 in a, 4 .. 19 in b. A block is [d and m, 4 x nibbles].
  LD_VNNI LD_INLINE static __m512 add_blocks(__m512 sum, __m512i a, __m512i b, const X& x) {
    const __m512i packed =
        _mm512_permutex2var_epi32(a,
                                  _mm512_setr_epi32(1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16 + 12,
                                                    16 + 13, 16 + 14, 16 + 15),
                                  b);
    const __m512i heads = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 5, 10, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), a);
    const __m512 d_m = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm512_castsi512_si128(heads)));
    const __m512 d = _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6), d_m);
    const __m512 m = _mm512_permutexvar_ps(
        _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7), d_m);
    sum = _mm512_fmadd_ps(m, _mm512_load_ps(x.sum), sum);
    return add_scaled(sum, dot_packed(_mm512_setzero_si512(), packed, x),
                      _mm512_mul_ps(d, _mm512_load_ps(x.scale)));
  }

  LD_VNNI LD_INLINE static __m512 dot(const uint8_t* row, int64_t num_cols,
                                      const MatvecInput& input, int64_t x_idx) {
    const X* x = input.nibbles(x_idx);
    const int64_t num_blocks = num_cols / kBlockWeights;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t b = 0; b + 4 <= num_blocks; b += 4, row += 80, ++x) {
      prefetch<80>(row);
      sum = add_blocks(sum, _mm512_loadu_si512(row), _mm512_loadu_si512(row + 16), *x);
    }
    const auto left = static_cast<uint32_t>(num_blocks % 4 * 5);  // dwords
    if (left == 0) return sum;
    const auto mask = static_cast<__mmask16>((1u << left) - 1);
    return add_blocks(sum, _mm512_maskz_loadu_epi32(mask, row),
                      _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask >> 4), row + 16), *x);
  }
};

struct RowQ4_0 {
  using X = XNibbles;

  // 4 blocks of 18 bytes, or count of them and zeros.
  LD_VNNI LD_INLINE static __m512i load_packed(const uint8_t* row, int64_t count) {
    __m512i packed = _mm512_castsi128_si512(load_128(row + 2));
    if (count < 4) packed = _mm512_zextsi128_si512(load_128(row + 2));
    if (count > 1) packed = _mm512_inserti32x4(packed, load_128(row + 20), 1);
    if (count > 2) packed = _mm512_inserti32x4(packed, load_128(row + 38), 2);
    if (count > 3) packed = _mm512_inserti32x4(packed, load_128(row + 56), 3);
    return packed;
  }

  LD_VNNI LD_INLINE static __m512 add_blocks(__m512 sum, __m512i words, __m512i packed,
                                             const X& x) {
    const __m512i heads = _mm512_permutexvar_epi16(
        _mm512_set_epi64(0, 0, 0, 0, 0x001b001b001b001b, 0x0012001200120012, 0x0009000900090009, 0),
        words);
    const __m512 d = _mm512_cvtph_ps(_mm512_castsi512_si256(heads));
    return add_scaled(sum, dot_packed(_mm512_load_si512(x.minus8), packed, x),
                      _mm512_mul_ps(d, _mm512_load_ps(x.scale)));
  }

  LD_VNNI LD_INLINE static __m512 dot(const uint8_t* row, int64_t num_cols,
                                      const MatvecInput& input, int64_t x_idx) {
    const X* x = input.nibbles(x_idx);
    const int64_t num_blocks = num_cols / kBlockWeights;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t b = 0; b + 4 <= num_blocks; b += 4, row += 72, ++x) {
      prefetch<72>(row);
      sum = add_blocks(sum, _mm512_loadu_si512(row), load_packed(row, 4), *x);
    }
    const int64_t left = num_blocks % 4;
    if (left == 0) return sum;
    const auto mask = static_cast<__mmask32>((1u << (9 * left)) - 1);
    return add_blocks(sum, _mm512_maskz_loadu_epi16(mask, row), load_packed(row, left), *x);
  }
};

struct RowQ8_0 {
  // Two blocks; d in the low 16 bits of each half's lanes. Bytes become unsigned by adding 128.
  LD_VNNI LD_INLINE static __m512 add_blocks(__m512 sum, __m512i q, __m256i halves,
                                             const XBytes& x) {
    const __m512i w = _mm512_xor_si512(q, _mm512_set1_epi8(-128));
    __m512i high = _mm512_slli_epi32(_mm512_load_si512(x.minus32_high), 2);
    __m512i low = _mm512_slli_epi32(_mm512_load_si512(x.minus32_low), 2);
    high = _mm512_dpbusd_epi32(high, w, _mm512_load_si512(x.high));
    low = _mm512_dpbusd_epi32(low, w, _mm512_load_si512(x.low));
    return add_scaled(sum, join(high, low),
                      _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_load_ps(x.scale)));
  }

  LD_VNNI LD_INLINE static __m128i spread_half(const uint8_t* at) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    return _mm_set1_epi16(static_cast<int16_t>(half));
  }

  LD_VNNI LD_INLINE static __m512 dot(const uint8_t* row, int64_t num_cols,
                                      const MatvecInput& input, int64_t x_idx) {
    const XBytes* x = input.bytes(x_idx);
    const int64_t num_blocks = num_cols / kBlockWeights;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t b = 0; b + 2 <= num_blocks; b += 2, row += 68, ++x) {
      prefetch<68>(row);
      const __m512i q =
          _mm512_inserti64x4(_mm512_castsi256_si512(load_256(row + 2)), load_256(row + 36), 1);
      sum = add_blocks(sum, q, _mm256_set_m128i(spread_half(row + 34), spread_half(row)), *x);
    }
    if (num_blocks % 2 == 0) return sum;
    return add_blocks(sum, _mm512_zextsi256_si512(load_256(row + 2)),
                      _mm256_zextsi128_si256(spread_half(row)), *x);
  }
};

// Spreads the bytes `first`, first + 1, ... over kLanes lanes each, as byte kByte of a dword of
// zeros: with kByte 0 the lanes are int16 pairs (value, 0) of an unsigned value, with 1 (256 *
// value, 0) of a signed one.
template <int kLanes, int kByte>
LD_VNNI LD_INLINE __m512i spread_scales(__m512i scales, int first) {
  const __m512i steps = kLanes == 4
                            ? _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0)
                            : _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i index =
      _mm512_slli_epi32(_mm512_add_epi32(steps, _mm512_set1_epi32(first)), 8 * kByte);
  const int zeros = static_cast<int>(kByte == 0 ? 0x80808000 : 0x80800080);
  return _mm512_shuffle_epi8(scales, _mm512_or_si512(index, _mm512_set1_epi32(zeros)));
}

struct RowQ6_K {
  // Lanes of products (each at most 16384 in size, an int16) times their groups' scales.
  LD_VNNI LD_INLINE static __m512 add_group(__m512 sum, __m512i q, __m512i scales,
                                            const XBytes& x) {
    const __m512i high =
        _mm512_dpbusd_epi32(_mm512_load_si512(x.minus32_high), q, _mm512_load_si512(x.high));
    const __m512i low =
        _mm512_dpbusd_epi32(_mm512_load_si512(x.minus32_low), q, _mm512_load_si512(x.low));
    const __m512 scale = _mm512_load_ps(x.scale);
    sum = add_scaled(sum, _mm512_madd_epi16(low, scales), scale);
    return add_scaled(sum, _mm512_madd_epi16(high, scales),
                      _mm512_mul_ps(scale, _mm512_set1_ps(256.0f)));
  }

  LD_VNNI LD_INLINE static __m512 dot(const uint8_t* row, int64_t num_cols,
                                      const MatvecInput& input, int64_t x_idx) {
    const XBytes* x = input.bytes(x_idx);
    // Weights of k = 0 or 2 in the lower half, of k = 1 or 3 in the upper one.
    const __m512i left = _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4);
    const __m512i right = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
    const __m512i two_bits = _mm512_set1_epi8(0x30);
    constexpr int kAndOr = 0xf8;  // a | (b & c)
    __m512 total = _mm512_setzero_ps();
    for (int64_t col = 0; col < num_cols; col += kSuperBlockWeights, row += sizeof(BlockQ6_K)) {
      prefetch<sizeof(BlockQ6_K)>(row);
      const __m512i scales = _mm512_broadcast_i32x4(load_128(row + offsetof(BlockQ6_K, scale)));
      __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half, x += 2) {
        const __m512i ql = _mm512_loadu_si512(row + half * 64);
        const __m512i qh =
            _mm512_broadcast_i64x4(load_256(row + offsetof(BlockQ6_K, qh) + half * 32));
        const __m512i q01 = _mm512_ternarylogic_epi64(low_nibbles(ql), _mm512_sllv_epi64(qh, left),
                                                      two_bits, kAndOr);
        const __m512i q23 = _mm512_ternarylogic_epi64(
            high_nibbles(ql), _mm512_srlv_epi64(qh, right), two_bits, kAndOr);
        sum = add_group(sum, q01, spread_scales<4, 1>(scales, 8 * half), x[0]);
        sum = add_group(sum, q23, spread_scales<4, 1>(scales, 8 * half + 4), x[1]);
      }
      const float d = half_to_float(row + offsetof(BlockQ6_K, d)) * (1.0f / 256.0f);
      total = _mm512_fmadd_ps(sum, _mm512_set1_ps(d), total);
    }
    return total;
  }
};

template <typename Block>
struct RowK {  // Q4_K and Q5_K
  LD_VNNI LD_INLINE static __m512 dot(const uint8_t* row, int64_t num_cols,
                                      const MatvecInput& input, int64_t x_idx) {
    const XBytes* x = input.bytes(x_idx);
    const float* x_sums = input.sums(x_idx);
    // 32 bytes twice: their low nibbles are one group, their high ones the next.
    const __m512i nibble = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    const __m512i two_groups = _mm512_set_epi64(1, 1, 1, 1, 0, 0, 0, 0);
    __m512 total = _mm512_setzero_ps();
    for (int64_t col = 0; col < num_cols; col += kSuperBlockWeights, row += sizeof(Block)) {
      prefetch<sizeof(Block)>(row);
      const GroupScales groups = unpack_group_scales(row + offsetof(Block, packed));
      const __m512i scales = _mm512_set1_epi64(static_cast<int64_t>(groups.scales));
      __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c, ++x) {
        const __m512i bytes = _mm512_broadcast_i64x4(load_256(row + offsetof(Block, q) + 32 * c));
        __m512i q = low_nibbles(_mm512_srlv_epi64(bytes, nibble));
        if constexpr (sizeof(Block) == sizeof(BlockQ5_K)) {
          const __m512i high =
              _mm512_srlv_epi64(_mm512_broadcast_i64x4(load_256(row + offsetof(BlockQ5_K, qh))),
                                _mm512_add_epi64(two_groups, _mm512_set1_epi64(2 * c)));
          const __m512i bit = _mm512_and_si512(high, _mm512_set1_epi8(1));
          q = _mm512_or_si512(q, _mm512_slli_epi16(bit, 4));
        }
        // A lane is at most 4 * 31 * 128 in size, an int16.
        const __m512i spread = spread_scales<8, 0>(scales, 2 * c);
        const __m512i zero = _mm512_setzero_si512();
        const __m512i high = _mm512_dpbusd_epi32(zero, q, _mm512_load_si512(x->high));
        const __m512i low = _mm512_dpbusd_epi32(zero, q, _mm512_load_si512(x->low));
        const __m512i scaled =
            join(_mm512_madd_epi16(high, spread), _mm512_madd_epi16(low, spread));
        sum = add_scaled(sum, scaled, _mm512_load_ps(x->scale));
      }
      const float d = half_to_float(row);
      total = _mm512_fmadd_ps(sum, _mm512_set1_ps(d), total);
      const __m256 mins = _mm256_cvtepi32_ps(
          _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(groups.mins))));
      const __m256 taken = _mm256_mul_ps(mins, _mm256_loadu_ps(x_sums + col / kBlockWeights));
      const float dmin = half_to_float(row + offsetof(Block, dmin));
      total = _mm512_fnmadd_ps(_mm512_zextps256_ps512(taken), _mm512_set1_ps(dmin), total);
    }
    return total;
  }
};

// 16 weights as fp32; those outside the mask are zero.
template <GgmlType kType>
struct RowPlain {
  LD_VNNI LD_INLINE static __m512 load(const uint8_t* at, __mmask16 mask) {
    if constexpr (kType == GgmlType::kF32) return _mm512_maskz_loadu_ps(mask, at);
    const __m256i bits = _mm256_maskz_loadu_epi16(mask, at);
    if constexpr (kType == GgmlType::kF16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  LD_VNNI LD_INLINE static __m512 dot(const uint8_t* row, int64_t num_cols,
                                      const MatvecInput& input, int64_t x_idx) {
    constexpr int64_t kSize = kType == GgmlType::kF32 ? 4 : 2;
    constexpr __mmask16 kAll = 0xffff;
    const float* x = input.x(x_idx);
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                      _mm512_setzero_ps()};
    int64_t col = 0;
    for (; col + 64 <= num_cols; col += 64) {
      prefetch<64 * kSize>(row + col * kSize);
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t at = col + 16 * i;
        sums[i] = _mm512_fmadd_ps(load(row + at * kSize, kAll), _mm512_loadu_ps(x + at), sums[i]);
      }
    }
    for (; col < num_cols; col += 16) {
      const int64_t left = num_cols - col;
      const auto mask = left >= 16 ? kAll : static_cast<__mmask16>((1u << left) - 1);
      sums[0] = _mm512_fmadd_ps(load(row + col * kSize, mask), _mm512_maskz_loadu_ps(mask, x + col),
                                sums[0]);
    }
    return _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
  }
};

// The sums of the lanes of four vectors.
LD_VNNI LD_INLINE __m128 sum_lanes(const __m512 (&v)[4]) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512 low = _mm512_shuffle_ps(ab, cd, 0x44);
  const __m512 high = _mm512_shuffle_ps(ab, cd, 0xee);
  const __m512 sums = _mm512_add_ps(low, high);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

template <typename Row>
LD_VNNI void multiply(const Product& product, const MatvecInput& input, int64_t begin,
                      int64_t end) {
  const Matrix& w = *product.w;
  const int64_t row_bytes = w.row_bytes();
  for (int64_t r = begin; r < end; r += 4) {
    const int64_t count = end - r < 4 ? end - r : 4;
    const uint8_t* rows = w.data + r * row_bytes;
    for (int64_t i = 0; i < input.num_x(); ++i) {
      __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                        _mm512_setzero_ps()};
      for (int64_t k = 0; k < count; ++k) {
        sums[k] = Row::dot(rows + k * row_bytes, w.num_cols, input, i);
      }
      _mm_mask_storeu_ps(product.y + i * w.num_rows + r, static_cast<__mmask8>((1u << count) - 1),
                         sum_lanes(sums));
    }
  }
}

}  // namespace

bool cpu_runs_matvec_vnni() {
  static const bool runs =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni");
  return runs;
}

void multiply_rows_vnni(const Product& product, const MatvecInput& input, int64_t begin,
                        int64_t end) {
  switch (product.w->type) {
    case GgmlType::kF32:
      return multiply<RowPlain<GgmlType::kF32>>(product, input, begin, end);
    case GgmlType::kF16:
      return multiply<RowPlain<GgmlType::kF16>>(product, input, begin, end);
    case GgmlType::kBF16:
      return multiply<RowPlain<GgmlType::kBF16>>(product, input, begin, end);
    case GgmlType::kQ4_0:
      return multiply<RowQ4_0>(product, input, begin, end);
    case GgmlType::kQ4_1:
      return multiply<RowQ4_1>(product, input, begin, end);
    case GgmlType::kQ8_0:
      return multiply<RowQ8_0>(product, input, begin, end);
    case GgmlType::kQ4_K:
      return multiply<RowK<BlockQ4_K>>(product, input, begin, end);
    case GgmlType::kQ5_K:
      return multiply<RowK<BlockQ5_K>>(product, input, begin, end);
    case GgmlType::kQ6_K:
      return multiply<RowQ6_K>(product, input, begin, end);
  }
}

#else

bool cpu_runs_matvec_vnni() { return false; }
void multiply_rows_vnni(const Product&, const MatvecInput&, int64_t, int64_t) {}

#endif  // defined(__x86_64__)

}  // namespace longdecode::runner
