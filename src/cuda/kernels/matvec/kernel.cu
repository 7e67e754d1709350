// y = W f(x) for 1..8 tokens, bound by reading W once: rows of W are the M dimension of the tensor
// core's instruction, tokens its N. The order of k within an instruction is free as long as W and
// x agree: lane 4 g + t holds 8 neighbouring columns, so that every load is 16 bytes.
#include <algorithm>

#include "cuda/device/floats.cuh"
#include "cuda/host/launch.h"
#include "cuda/kernels/matvec/kernel.h"
#include "cuda/kernels/matvec/ring.cuh"
#include "cuda/kernels/matvec/scale_rows.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace longdecode::cuda::matvec {
namespace {

constexpr int kPieces = kChunkCols / 32;  // a lane's 16-byte pieces of a row of a chunk

__device__ __forceinline__ uint4 load_shared_16(uint32_t s_address) {
  const int4 v = ptx::load_shared_int4(s_address);
  return make_uint4(v.x, v.y, v.z, v.w);
}

// The lane's columns of token lane / 4 for a chunk; zeros for tokens and columns beyond the last.
template <bool kNormalise>
__device__ __forceinline__ void load_x(const Params& p, uint32_t s_x, int chunk, int lane,
                                       uint4 (&x)[kPieces]) {
  const int token = lane >> 2, column = chunk * kChunkCols + 8 * (lane & 3);
  const bool has_token = token < p.num_tokens;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    x[j] = make_uint4(0, 0, 0, 0);
    if constexpr (kNormalise) {
      if (has_token) x[j] = load_shared_16(s_x + 2 * (column + 32 * j));
    } else if (has_token && column + 32 * j < p.num_cols) {
      x[j] = *reinterpret_cast<const uint4*>(p.g_x_bf16 + int64_t{token} * p.num_cols + column +
                                             32 * j);
    }
  }
}

// d += chunk * x.
__device__ __forceinline__ void multiply(uint32_t s_chunk, int lane, const uint4 (&x)[kPieces],
                                         float (&d)[4]) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const uint32_t s_piece = s_chunk + g * 256 + 16 * ((4 * j + t) ^ (4 * (g & 1)));
    const uint4 a = load_shared_16(s_piece), b = load_shared_16(s_piece + 8 * 256);
    ptx::mma_16bit<false>(d, a.x, b.x, a.y, b.y, x[j].x, x[j].y);
    ptx::mma_16bit<false>(d, a.z, b.z, a.w, b.w, x[j].z, x[j].w);
  }
}

// The warps' sums of a tile. factors: nullptr, or the squares of normalised tokens.
struct TileSums {
  const float* s_sums;
  const float* s_squares;

  // Of row `row` of the tile, which is `global_row` of W.
  __device__ __forceinline__ float total(const Params& p, int token, int row,
                                         int global_row) const {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum += s_sums[(w * p.num_tokens + token) * kTileRows + row];
    }
    if (s_squares != nullptr) sum *= norm_factor(p, s_squares, token);
    return p.g_bias != nullptr ? sum + p.g_bias[global_row] : sum;
  }
};

__device__ __forceinline__ void store_tile(const Params& p, const TileSums& sums, int tile) {
  const int token = threadIdx.x / kTileRows, row = threadIdx.x % kTileRows;
  const int global_row = tile * kTileRows + row;
  if (token >= p.num_tokens || global_row >= p.num_rows) return;
  if (p.store == Store::kSiluUpBf16) {
    constexpr int kHalf = kTileRows / 2;
    if (row >= kHalf) return;
    const float gate = sums.total(p, token, row, global_row);
    const float up = sums.total(p, token, row + kHalf, global_row + kHalf);
    static_cast<uint16_t*>(p.g_y)[int64_t{token} * (p.num_rows / 2) + tile * kHalf + row] =
        to_bf16(silu(gate) * up);
    return;
  }
  const int64_t index = int64_t{token} * p.num_rows + global_row;
  const float sum = sums.total(p, token, row, global_row);
  if (p.store == Store::kBf16) {
    static_cast<uint16_t*>(p.g_y)[index] = to_bf16(sum);
  } else if (p.store == Store::kAddF32) {
    static_cast<float*>(p.g_y)[index] += sum;
  } else {
    static_cast<float*>(p.g_y)[index] = sum;
  }
}

// A CTA takes tiles blockIdx.x, + gridDim.x, ...; its warps share the columns of each.
template <bool kNormalise, int kStages>
__global__ void __launch_bounds__(kThreads, kMaxCtasPerSm)
    matvec_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char s_storage[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* s_sums = reinterpret_cast<float*>(s_storage + kWarps * kStages * kChunkBytes);
  const int sums_per_tile = kWarps * p.num_tokens * kTileRows;
  float* s_squares = kNormalise ? s_sums + 2 * sums_per_tile : nullptr;
  Ring<kStages> ring(p, ptx::shared_address(s_storage), warp, lane);
  for (int i = 0; i < kStages; ++i) ring.fetch(p, lane);
  uint32_t s_x = 0;
  if constexpr (kNormalise) {
    char* s_rows = reinterpret_cast<char*>(s_squares + kWarps * kMaxTokens);
    scale_rows(p, s_squares, s_rows);
    s_x = ptx::shared_address(s_rows) + (lane >> 2) * p.x_pitch_bytes;
  } else {
    ptx::wait_dependency();
  }
  // The next launch's loads follow the last ones of this one: earlier, they would only leave the
  // memory idle later.
  bool loads_finished = ring.exhausted();
  if (loads_finished) ptx::launch_dependents();
  int turn = 0;
  for (int tile = blockIdx.x; tile < ring.num_tiles(); tile += gridDim.x, turn ^= 1) {
    float d[4] = {};
    for (int chunk = warp; chunk < ring.num_chunks(); chunk += kWarps) {
      uint4 x[kPieces];
      load_x<kNormalise>(p, s_x, chunk, lane, x);
      const uint32_t s_chunk = ring.wait();
      multiply(s_chunk, lane, x, d);
      ring.release();
      ring.fetch(p, lane);
      if (!loads_finished && ring.exhausted()) {
        ptx::launch_dependents();
        loads_finished = true;
      }
    }
    float* s_tile = s_sums + turn * sums_per_tile;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 2 * (lane & 3) + (i & 1), row = (lane >> 2) + 8 * (i >> 1);
      if (token < p.num_tokens) s_tile[(warp * p.num_tokens + token) * kTileRows + row] = d[i];
    }
    // The other half of s_sums is free then: its readers have come here too.
    __syncthreads();
    store_tile(p, {s_tile, s_squares}, tile);
  }
}

// Two CTAs an SM, or a longer ring where many rows of x leave room for one.
struct Choice {
  void (*kernel)(Params);
  int32_t num_stages, ctas_per_sm;
};

Choice choose(const Params& params, bool normalise) {
  if (!normalise) return {matvec_kernel<false, 3>, 3, kMaxCtasPerSm};
  const auto bytes = [&](int32_t num_stages) {
    return shared_bytes(num_stages, params.num_cols, params.num_tokens, true);
  };
  if (kMaxCtasPerSm * (bytes(3) + kSharedBytesReserved) <= kSharedBytesOfSm) {
    return {matvec_kernel<true, 3>, 3, kMaxCtasPerSm};
  }
  if (bytes(4) <= kMaxSharedBytes) return {matvec_kernel<true, 4>, 4, 1};
  return {matvec_kernel<true, 3>, 3, 1};
}

}  // namespace

cudaError_t launch(Params params, int32_t num_sms, cudaStream_t stream) {
  params.x_pitch_bytes = x_pitch_bytes(params.num_cols);
  const bool normalise = params.g_x_f32 != nullptr;
  const Choice choice = choose(params, normalise);
  const int32_t tiles = (params.num_rows + kTileRows - 1) / kTileRows;
  // Fewer CTAs than fit would be placed unevenly while those of the launch before still run.
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(std::min(tiles, choice.ctas_per_sm * num_sms)));
  shape.block = dim3(kThreads);
  shape.shared_bytes =
      shared_bytes(choice.num_stages, params.num_cols, params.num_tokens, normalise);
  return launch_programmatic(choice.kernel, shape, stream, params);
}

}  // namespace longdecode::cuda::matvec
