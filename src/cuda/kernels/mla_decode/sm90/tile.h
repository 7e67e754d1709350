// The structural parameter of the kernel and the list of all its instances.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_TILE_H_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_TILE_H_

#include <cstdint>

namespace longdecode::cuda::mla_sm90 {

inline constexpr int32_t kTileTokens = 64;  // M of S^T = K Q^T, K of O^T += V^T P^T
inline constexpr int32_t kKeyDim = 576;
inline constexpr int32_t kValueDim = 512;
// Up to this many rows the scores are transposed too; more take M of S = Q K^T (rows.cuh).
inline constexpr int32_t kMostTransposedRows = 32;

// A query row is one (query token, head): row = token * num_q_heads + head. A CTA serves
// `rows` rows of one sequence, the N of both products, and shares every K tile among them.
struct Tile {
  int32_t rows;  // 8, 16, 32: one warpgroup; 48, 64: one scores, two accumulate
  bool is_f16;   // else bf16

  constexpr bool operator==(const Tile&) const = default;
};

// A kernel's template parameter is an index into this list: nvcc 13.0 writes wrong host stubs for
// kernels with a structural template parameter.
inline constexpr Tile kInstances[] = {
    {8, false}, {16, false}, {32, false}, {48, false}, {64, false},
    {8, true},  {16, true},  {32, true},  {48, true},  {64, true},
};

inline constexpr int32_t kNumInstances = sizeof(kInstances) / sizeof(kInstances[0]);

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_TILE_H_
