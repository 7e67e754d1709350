// Element-wise work on rows; a CTA takes a row at a time.
#include "cuda/device/floats.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/host/launch.h"
#include "cuda/kernels/rows/kernel.h"
#include "cuda/ptx/barrier.cuh"

namespace longdecode::cuda::rows {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = 2048;

__global__ void __launch_bounds__(kThreads) embed_kernel(const __grid_constant__ EmbedParams p) {
  ptx::launch_dependents();
  ptx::wait_dependency();
  for (int64_t row = blockIdx.x; row < p.num_rows; row += gridDim.x) {
    const int id = p.g_ids[row];
    const bool known = id >= 0 && id < p.vocab_size;
    const auto* g_from = reinterpret_cast<const uint4*>(p.g_embedding + int64_t{id} * p.dim);
    for (int unit = threadIdx.x; unit < p.dim / 8; unit += kThreads) {
      constexpr uint32_t kNans = 0x7fc07fc0;
      const uint4 bits = known ? g_from[unit] : make_uint4(kNans, kNans, kNans, kNans);
      store_floats8(p.g_x + row * p.dim + 8 * unit, unpack_bf16(bits));
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const __grid_constant__ RmsNormParams p) {
  __shared__ float s_squares[2][kThreads / 32];  // rows in turn
  ptx::launch_dependents();
  ptx::wait_dependency();
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.num_rows; row += gridDim.x, turn ^= 1) {
    const float* g_x = p.g_x + row * p.dim;
    float squares = 0.0f;
    for (int unit = threadIdx.x; unit < p.dim / 8; unit += kThreads) {
      const Floats8 x = load_floats8(g_x + 8 * unit);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares = fmaf(x.v[i], x.v[i], squares);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) s_squares[turn][threadIdx.x / 32] = squares;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) sum += s_squares[turn][w];
    const float scale = rsqrtf(sum / static_cast<float>(p.dim) + p.eps);
    for (int unit = threadIdx.x; unit < p.dim / 8; unit += kThreads) {
      Floats8 x = load_floats8(g_x + 8 * unit);
      const Floats8 weight = load_floats8(p.g_weight + 8 * unit);
#pragma unroll
      for (int i = 0; i < 8; ++i) x.v[i] *= scale * weight.v[i];
      reinterpret_cast<uint4*>(p.g_out + row * p.dim)[unit] = pack_bf16(x);
    }
  }
}

__global__ void __launch_bounds__(kThreads) silu_up_kernel(const __grid_constant__ SiluUpParams p) {
  ptx::launch_dependents();
  ptx::wait_dependency();
  for (int64_t row = blockIdx.x; row < p.num_rows; row += gridDim.x) {
    const auto* g_pairs = reinterpret_cast<const uint4*>(p.g_gate_up + row * 2 * p.dim);
    for (int unit = threadIdx.x; unit < p.dim / 8; unit += kThreads) {
      Floats8 gate = unpack_bf16(g_pairs[2 * unit]);
      const Floats8 up = unpack_bf16(g_pairs[2 * unit + 1]);
#pragma unroll
      for (int i = 0; i < 8; ++i) gate.v[i] = silu(gate.v[i]) * up.v[i];
      reinterpret_cast<uint4*>(p.g_out + row * p.dim)[unit] = pack_bf16(gate);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_rows_kernel(const __grid_constant__ FillRowsParams p) {
  ptx::launch_dependents();
  ptx::wait_dependency();
  for (int64_t row = blockIdx.x; row < p.num_rows; row += gridDim.x) {
    for (int i = threadIdx.x; i < p.dim; i += kThreads) p.g_y[row * p.dim + i] = p.g_bias[i];
  }
}

template <class Params>
cudaError_t start(void (*kernel)(Params), const Params& params, cudaStream_t stream) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(params.num_rows < kMaxCtas ? params.num_rows : kMaxCtas));
  shape.block = dim3(kThreads);
  return launch_programmatic(kernel, shape, stream, params);
}

}  // namespace

cudaError_t launch(const EmbedParams& params, cudaStream_t stream) {
  return start(embed_kernel, params, stream);
}
cudaError_t launch(const RmsNormParams& params, cudaStream_t stream) {
  return start(rms_norm_kernel, params, stream);
}
cudaError_t launch(const SiluUpParams& params, cudaStream_t stream) {
  return start(silu_up_kernel, params, stream);
}
cudaError_t launch(const FillRowsParams& params, cudaStream_t stream) {
  return start(fill_rows_kernel, params, stream);
}

}  // namespace longdecode::cuda::rows
