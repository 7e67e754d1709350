// x as bytes for matvec_vnni.cc.
#include "runner/linear/matvec_kernels.h"

#if defined(__x86_64__)
#include "runner/linear/vnni-inl.h"
#endif

namespace longdecode::runner {

#if defined(__x86_64__)

namespace {

constexpr float kMaxQ = 32639.0f;  // 127 * 256 + 127

// 16 q = 256 * high + low.
LD_VNNI LD_INLINE void store_bytes(__m512i q, int8_t* high, int8_t* low) {
  const __m512i low_bytes = _mm512_srai_epi32(_mm512_slli_epi32(q, 24), 24);
  const __m512i high_bytes = _mm512_srai_epi32(_mm512_sub_epi32(q, low_bytes), 8);
  _mm_store_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtsepi32_epi8(high_bytes));
  _mm_store_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(low_bytes));
}

// The two halves of 32 x as integers; returns the scale.
LD_VNNI LD_INLINE float quantize_block(const float* x, __m512i (&q)[2]) {
  const __m512 a = _mm512_loadu_ps(x);
  const __m512 b = _mm512_loadu_ps(x + 16);
  const float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  // Below 1e-33 the inverse overflows; such a block counts as zeros.
  const __m512 inverse = _mm512_set1_ps(max >= 1e-33f ? kMaxQ / max : 0.0f);
  q[0] = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
  q[1] = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
  return max / kMaxQ;
}

// Per lane, -2^kShift times the sum of its 4 bytes.
template <int kShift>
LD_VNNI LD_INLINE __m512i minus_lane_sums(const int8_t* q) {
  const __m512i sums =
      _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(q));
  return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sums, kShift));
}

}  // namespace

LD_VNNI void pack_bytes(const float* x, int64_t num_cols, XBytes* groups, float* sums) {
  const int64_t num_blocks = num_cols / kBlockWeights;
  for (int64_t b = 0; b < num_blocks; ++b) {
    XBytes& group = groups[b / 2];
    if (b % 2 == 0 && b + 1 == num_blocks) group = XBytes{};
    const int64_t at = b % 2 * 32;
    __m512i q[2];
    const float scale = quantize_block(x + b * kBlockWeights, q);
    store_bytes(q[0], group.high + at, group.low + at);
    store_bytes(q[1], group.high + at + 16, group.low + at + 16);
    _mm256_store_ps(group.scale + at / 4, _mm256_set1_ps(scale));
    sums[b] = scale * static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(q[0], q[1])));
    if (b % 2 == 0 && b + 1 < num_blocks) continue;
    _mm512_store_si512(group.minus32_high, minus_lane_sums<5>(group.high));
    _mm512_store_si512(group.minus32_low, minus_lane_sums<5>(group.low));
  }
}

LD_VNNI void pack_nibbles(const float* x, int64_t num_cols, XNibbles* groups) {
  const int64_t num_blocks = num_cols / kBlockWeights;
  for (int64_t b = 0; b < num_blocks; b += 4, ++groups) {
    if (b + 4 > num_blocks) *groups = XNibbles{};
    const int64_t count = num_blocks - b < 4 ? num_blocks - b : 4;
    for (int64_t i = 0; i < count; ++i) {
      __m512i q[2];
      const float scale = quantize_block(x + (b + i) * kBlockWeights, q);
      store_bytes(q[0], groups->high[0] + 16 * i, groups->low[0] + 16 * i);
      store_bytes(q[1], groups->high[1] + 16 * i, groups->low[1] + 16 * i);
      _mm_store_ps(groups->scale + 4 * i, _mm_set1_ps(scale));
    }
    const __m512i high =
        _mm512_add_epi32(minus_lane_sums<3>(groups->high[0]), minus_lane_sums<3>(groups->high[1]));
    const __m512i low =
        _mm512_add_epi32(minus_lane_sums<3>(groups->low[0]), minus_lane_sums<3>(groups->low[1]));
    const __m512i minus8 = join(high, low);
    _mm512_store_si512(groups->minus8, minus8);
    _mm512_store_ps(groups->sum, _mm512_mul_ps(_mm512_cvtepi32_ps(minus8),
                                               _mm512_mul_ps(_mm512_load_ps(groups->scale),
                                                             _mm512_set1_ps(-0.125f))));
  }
}

#else

void pack_bytes(const float*, int64_t, XBytes*, float*) {}
void pack_nibbles(const float*, int64_t, XNibbles*) {}

#endif  // defined(__x86_64__)

}  // namespace longdecode::runner
