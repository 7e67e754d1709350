// Warp-wide matrix multiply-accumulate on registers, D[16 x 8] += A[16 x K] B[K x 8].
//
// Lane 4 g + t: a[0], a[1] are rows g and g + 8 of the first half of K, a[2], a[3] of the second;
// a 16-bit operand holds columns 2 t, 2 t + 1 of its half, an 8-bit one columns 4 t .. 4 t + 3.
// b0, b1 are the same elements of K in column g. d[0], d[1]: row g, columns 2 t, 2 t + 1;
// d[2], d[3]: row g + 8.
#ifndef LONGDECODE_CUDA_PTX_MMA_SYNC_CUH_
#define LONGDECODE_CUDA_PTX_MMA_SYNC_CUH_

#include <cstdint>

namespace longdecode::cuda::ptx {

// K = 32: A unsigned, B signed bytes.
__device__ __forceinline__ void mma_u8_s8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                          uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// K = 16: fp16 or bf16 operands, fp32 sums.
template <bool kIsF16>
__device__ __forceinline__ void mma_16bit(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                          uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (kIsF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

}  // namespace longdecode::cuda::ptx

#endif  // LONGDECODE_CUDA_PTX_MMA_SYNC_CUH_
