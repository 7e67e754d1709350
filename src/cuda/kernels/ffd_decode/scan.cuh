// Scanning the 2-bit codes of a page: which of its tiles hold a candidate of some row.
//
// A masked byte of the code plane is an operand of the matrix instruction as it is: the fields at
// bits 4 and 6 directly, those at bits 0 and 2 after a multiplication by 16. So the fields 0 and 2
// give 16 times, the fields 1 and 3 give 64 times the sum that is wanted, in two accumulators.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCAN_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCAN_CUH_

#include "cuda/kernels/ffd_decode/fold.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace longdecode::cuda::ffd {

// Codes of kStepTiles tiles, at least one repetition of the code plane.
template <class C>
struct StepCodes {
  static constexpr int kTiles = C::kGroupTiles > 2 ? C::kGroupTiles : 2;
  static constexpr int kQuads = kTiles * C::kBlocks / 4;
  int4 quads[kQuads];

  // s_codes: of the first quad, with the lane's offset. In the written order: early.
  __device__ __forceinline__ void load(uint32_t s_codes) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quads[q] = ptx::load_shared_int4(s_codes + 512 * q);
  }
};

// negative[tile] has its sign bit clear where the lane has a candidate. The products of the tiles
// take turns: each waits for the one before it of its own tile and kind of field.
template <class C>
__device__ __forceinline__ void scan_step(const StepCodes<C>& codes, const ScanQuery<C>& query,
                                          uint32_t sixteen, int32_t* negative) {
  constexpr int kTiles = StepCodes<C>::kTiles;
  uint32_t low[StepCodes<C>::kQuads][4];
#pragma unroll
  for (int q = 0; q < StepCodes<C>::kQuads; ++q) {
#pragma unroll
    for (int j = 0; j < 4; ++j) low[q][j] = word(codes.quads[q], j) * sixteen;
  }
  int32_t even[kTiles][4], odd[kTiles][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      even[tile][j] = j % 2 == 0 ? query.start_0 : query.start_1;
      odd[tile][j] = 0;
    }
  }
#pragma unroll
  for (int block = 0; block < C::kBlocks; ++block) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int unit = tile * C::kBlocks + block, field = unit % 4, q = unit / 4;
      const uint32_t mask = field % 2 == 0 ? 0x30303030u : 0xc0c0c0c0u;
      uint32_t a[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[j] = (field < 2 ? low[q][j] : word(codes.quads[q], j)) & mask;
      }
      ptx::mma_u8_s8(field % 2 == 0 ? even[tile] : odd[tile], a[0], a[1], a[2], a[3],
                     query.b[2 * block], query.b[2 * block + 1]);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    negative[tile] = (4 * even[tile][0] + odd[tile][0]) & (4 * even[tile][1] + odd[tile][1]) &
                     (4 * even[tile][2] + odd[tile][2]) & (4 * even[tile][3] + odd[tile][3]);
  }
}

// Bit i: tile i of the page has a candidate of the rows of `query`.
template <class C>
__device__ __forceinline__ uint32_t scan_tiles(const Params& p, uint32_t s_chunk,
                                               const ScanQuery<C>& query, int lane) {
  constexpr int kStep = StepCodes<C>::kTiles;
  const int num_steps = static_cast<int>(static_cast<uint32_t>(p.page_tiles) / kStep);
  uint32_t s_codes = s_chunk + 16 * lane, none = 0;
  StepCodes<C> next;
  next.load(s_codes);
  // Not unrolled: the compiler would do one tile after the other, to save registers, and wait for
  // every product.
#pragma unroll 1
  for (int step = 0; step < num_steps; ++step) {
    const StepCodes<C> codes = next;
    if (step + 1 < num_steps) s_codes += 512 * StepCodes<C>::kQuads;
    next.load(s_codes);  // after the last step: again, for nothing
    int32_t negative[kStep];
    scan_step<C>(codes, query, p.sixteen, negative);
#pragma unroll
    for (int tile = 0; tile < kStep; ++tile) {
      none = __funnelshift_l(static_cast<uint32_t>(negative[tile]), none, 1);
    }
  }
  const uint32_t hits = __brev(~none) >> (32 - p.page_tiles);
  return __reduce_or_sync(kFullWarp, hits);
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCAN_CUH_
