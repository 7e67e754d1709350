// y = W f(x) for 1..8 tokens, bound by reading W once: rows of W are the M dimension of the tensor
// core's instruction, tokens its N. The order of k within an instruction is free as long as W and
// x agree: lane 4 g + t holds 8 neighbouring columns, so that every load is 16 bytes.
#include "cuda/device/floats.cuh"
#include "cuda/host/launch.h"
#include "cuda/kernels/matvec/kernel.h"
#include "cuda/kernels/matvec/normalise.cuh"
#include "cuda/kernels/matvec/ring.cuh"
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

// The warps' sums of one row and token.
__device__ __forceinline__ float total(const float* s_sums, int num_tokens, int token, int row) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s_sums[(w * num_tokens + token) * kTileRows + row];
  return sum;
}

__device__ __forceinline__ float with_bias(const Params& p, float sum, int row) {
  return p.g_bias != nullptr ? sum + p.g_bias[row] : sum;
}

__device__ __forceinline__ void store_tile(const Params& p, const float* s_sums, int tile) {
  const int token = threadIdx.x / kTileRows, row = threadIdx.x % kTileRows;
  const int global_row = tile * kTileRows + row;
  if (token >= p.num_tokens || global_row >= p.num_rows) return;
  if (p.store == Store::kSiluUpBf16) {
    if (row >= kTileRows / 2) return;
    const float gate = with_bias(p, total(s_sums, p.num_tokens, token, row), global_row);
    const float up = with_bias(p, total(s_sums, p.num_tokens, token, row + kTileRows / 2),
                               global_row + kTileRows / 2);
    static_cast<uint16_t*>(
        p.g_y)[int64_t{token} * (p.num_rows / 2) + tile * (kTileRows / 2) + row] =
        to_bf16(silu(gate) * up);
    return;
  }
  const int64_t index = int64_t{token} * p.num_rows + global_row;
  const float sum = with_bias(p, total(s_sums, p.num_tokens, token, row), global_row);
  if (p.store == Store::kBf16) {
    static_cast<uint16_t*>(p.g_y)[index] = to_bf16(sum);
  } else if (p.store == Store::kAddF32) {
    static_cast<float*>(p.g_y)[index] += sum;
  } else {
    static_cast<float*>(p.g_y)[index] = sum;
  }
}

// A CTA takes tiles blockIdx.x, + gridDim.x, ...; its warps share the columns of each.
template <bool kNormalise>
__global__ void __launch_bounds__(kThreads, 2) matvec_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char s_storage[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* s_sums = reinterpret_cast<float*>(s_storage + kRingBytes);
  const int sums_per_tile = kWarps * p.num_tokens * kTileRows;
  float* s_squares = s_sums + 2 * sums_per_tile;
  char* s_normed = reinterpret_cast<char*>(s_squares + kWarps * kMaxTokens);
  Ring ring(p, ptx::shared_address(s_storage), warp, lane);
  for (int i = 0; i < kStages; ++i) ring.fetch(p, lane);
  if constexpr (kNormalise) {
    normalise(p, s_squares, s_normed);
  } else {
    ptx::wait_dependency();
  }
  const uint32_t s_x = ptx::shared_address(s_normed) + (lane >> 2) * p.x_pitch_bytes;
  // The next launch's loads follow the last ones of this one: earlier, they would only leave the
  // memory idle later.
  bool launched = ring.exhausted();
  if (launched) ptx::launch_dependents();
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
      if (!launched && ring.exhausted()) {
        ptx::launch_dependents();
        launched = true;
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
    store_tile(p, s_tile, tile);
  }
}

}  // namespace

cudaError_t launch(Params params, int32_t num_sms, cudaStream_t stream) {
  params.x_pitch_bytes = x_pitch_bytes(params.num_cols);
  const int32_t tiles = (params.num_rows + kTileRows - 1) / kTileRows;
  const bool normalise = params.g_x_f32 != nullptr;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(tiles < num_sms ? tiles : num_sms));
  shape.block = dim3(kThreads);
  shape.shared_bytes = shared_bytes(params.num_cols, params.num_tokens, normalise);
  return launch_programmatic(normalise ? matvec_kernel<true> : matvec_kernel<false>, shape, stream,
                             params);
}

}  // namespace longdecode::cuda::matvec
