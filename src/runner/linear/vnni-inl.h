// What the AVX512-VNNI files share. x86-64 only; not for other files.
#ifndef LONGDECODE_RUNNER_LINEAR_VNNI_INL_H_
#define LONGDECODE_RUNNER_LINEAR_VNNI_INL_H_

#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined pass-through operands of its own avx512fintrin.h for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#define LD_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")))
#define LD_INLINE __attribute__((always_inline)) inline

namespace longdecode::runner {

// 256 * high + low.
LD_VNNI LD_INLINE __m512i join(__m512i high, __m512i low) {
  return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_VNNI_INL_H_
