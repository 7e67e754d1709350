// Warpgroup matrix multiply-accumulate, A and B in shared memory, D fp32 in registers.
//
// D[64 x N] = A[64 x 16] B[N x 16]^T (+ D). B is K-major; A is K-major, or MN-major when
// kTransposeA. Thread t of the warpgroup (warp w, lane 4 g + c) holds in d[4 j + i] row
// 16 w + g + 8 (i / 2), column 8 j + 2 c + i % 2.
#ifndef LONGDECODE_CUDA_PTX_WGMMA_CUH_
#define LONGDECODE_CUDA_PTX_WGMMA_CUH_

#include <cstdint>

namespace longdecode::cuda::ptx {

// Orders register and shared-memory accesses before the wgmmas that follow. Needed after every
// mbarrier wait too: without it ptxas serialises the wgmmas (C7520).
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After a wait for the group that computes them while later groups run: keeps the compiler from
// reading the accumulators before the wait (it would serialise the groups).
template <int kCount>
__device__ __forceinline__ void wgmma_results(float (&accumulator)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulator[i])::"memory");
}

// Descriptor of a tile whose rows are 128 bytes, 128-byte swizzle, 8-row groups 1024 bytes apart:
// the same for K-major (rows = M or N) and MN-major (rows = K) operands. Advancing by 16 elements
// of K adds 32 bytes (K-major) or 2048 bytes (MN-major), i.e. 2 or 128 in the address field.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t s_address) {
  return (uint64_t{1} << 62) | (uint64_t{64} << 32) | (uint64_t{1} << 16) |
         static_cast<uint64_t>((s_address & 0x3ffff) >> 4);
}

template <int kN, bool kIsF16, bool kTransposeA>
struct Wgmma;

// The operands after D in the PTX text: A, B, accumulate predicate, transpose flag.
#define LD_WGMMA_TEXT(N, TYPE, D, AB, PREDICATE, TRANSPOSE)                                  \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " PREDICATE ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
  "k16.f32." TYPE "." TYPE " {" D "}, " AB ", p, 1, 1, " TRANSPOSE ", 0;\n}\n"
#define LD_WGMMA(N, D, AB, PREDICATE, TRANSPOSE, ...)                                     \
  template <bool kIsF16, bool kTransposeA>                                                \
  struct Wgmma<N, kIsF16, kTransposeA> {                                                  \
    static __device__ __forceinline__ void mma(float (&d)[N / 2], uint64_t a, uint64_t b, \
                                               bool accumulate) {                         \
      if constexpr (kIsF16) {                                                             \
        asm volatile(LD_WGMMA_TEXT(N, "f16", D, AB, PREDICATE, TRANSPOSE)                 \
                     : __VA_ARGS__                                                        \
                     : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int{kTransposeA}));      \
      } else {                                                                            \
        asm volatile(LD_WGMMA_TEXT(N, "bf16", D, AB, PREDICATE, TRANSPOSE)                \
                     : __VA_ARGS__                                                        \
                     : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int{kTransposeA}));      \
      }                                                                                   \
    }                                                                                     \
  };
#define LD_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LD_D16(i) LD_D4(i), LD_D4(i + 4), LD_D4(i + 8), LD_D4(i + 12)

// clang-format off
LD_WGMMA(8,
         "%0, %1, %2, %3",
         "%4, %5", "%6", "%7", LD_D4(0))
LD_WGMMA(16,
         "%0, %1, %2, %3, %4, %5, %6, %7",
         "%8, %9", "%10", "%11", LD_D4(0), LD_D4(4))
LD_WGMMA(32,
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
         "%16, %17", "%18", "%19", LD_D16(0))
LD_WGMMA(48,
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
         "%16, %17, %18, %19, %20, %21, %22, %23",
         "%24, %25", "%26", "%27", LD_D16(0), LD_D4(16), LD_D4(20))
LD_WGMMA(64,
         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
         "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
         "%32, %33", "%34", "%35", LD_D16(0), LD_D16(16))
// clang-format on

#undef LD_WGMMA
#undef LD_WGMMA_TEXT
#undef LD_D4
#undef LD_D16

}  // namespace longdecode::cuda::ptx

#endif  // LONGDECODE_CUDA_PTX_WGMMA_CUH_
