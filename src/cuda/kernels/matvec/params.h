// What the kernel of products with 1..8 tokens gets by value. Device memory.
#ifndef LONGDECODE_CUDA_KERNELS_MATVEC_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_MATVEC_PARAMS_H_

#include <cstdint>

namespace longdecode::cuda::matvec {

enum class Store : int32_t { kF32, kBf16, kAddF32, kSiluUpBf16 };

struct Params {
  const uint16_t* g_weight;    // bf16 [num_rows, num_cols]
  const float* g_bias;         // [num_rows] or nullptr
  const uint16_t* g_x_bf16;    // [num_tokens, num_cols], or
  const float* g_x_f32;        // [num_tokens, num_cols], normalised with
  const float* g_norm_weight;  // [num_cols]
  float norm_eps;
  Store store;
  void* g_y;  // [num_tokens, num_rows], [num_tokens, num_rows / 2] for kSiluUpBf16
  int32_t num_rows, num_cols, num_tokens;
  int32_t x_pitch_bytes;  // of a row of x in shared memory; set by launch
};

// Rows of W in a tile, which is the unit of work of a CTA.
inline constexpr int kTileRows = 16;
// A warp brings in and multiplies this many columns of a tile at a time.
inline constexpr int kChunkCols = 128;
inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kMaxCtasPerSm = 2;
inline constexpr int kChunkBytes = kTileRows * kChunkCols * 2;
inline constexpr int kMaxTokens = 8;

// Rows of x are padded to whole chunks; 64 bytes more keep the 8 rows that a warp reads together in
// different banks.
constexpr int32_t x_pitch_bytes(int32_t num_cols) {
  return 2 * ((num_cols + kChunkCols - 1) / kChunkCols * kChunkCols) + 64;
}
// A warp has num_stages chunks in flight or in use. Then sums of the warps, two tiles in turn,
// [2][kWarps][num_tokens][kTileRows] floats; then squares, [kWarps][kMaxTokens] floats; then x.
constexpr int64_t ring_bytes(int32_t num_stages) {
  return int64_t{kWarps} * num_stages * kChunkBytes;
}
constexpr int64_t sums_bytes(int32_t num_tokens) {
  return int64_t{2} * kWarps * num_tokens * kTileRows * 4;
}
inline constexpr int64_t kSquaresBytes = kWarps * kMaxTokens * 4;
constexpr int64_t shared_bytes(int32_t num_stages, int32_t num_cols, int32_t num_tokens,
                               bool normalise) {
  const int64_t bytes = ring_bytes(num_stages) + sums_bytes(num_tokens);
  return normalise ? bytes + kSquaresBytes + int64_t{num_tokens} * x_pitch_bytes(num_cols) : bytes;
}
// Of an SM, and what each CTA costs beside its own.
inline constexpr int64_t kSharedBytesOfSm = 233472, kSharedBytesReserved = 1024;
inline constexpr int64_t kMaxSharedBytes = kSharedBytesOfSm - kSharedBytesReserved;

}  // namespace longdecode::cuda::matvec

#endif  // LONGDECODE_CUDA_KERNELS_MATVEC_PARAMS_H_
