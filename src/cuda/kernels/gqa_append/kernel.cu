#include "cuda/kernels/gqa_append/kernel.h"

#include "cuda/kernels/gqa_append/cached_rows.cuh"

namespace longdecode::cuda::gqa_append {
namespace {

constexpr int kMaxThreads = 32 * kMaxQuads;

// V to pages; keys to pages or to the ring, of which a later token keeps the row.
template <DType kFrom, DType kTo>
__device__ __forceinline__ void write_rows(const Params& p, const Pair& pair, int cta,
                                           int num_ctas) {
  const int units = p.dim / 8;
  const int ring = static_cast<int>(p.ring_tokens.value);
  const int count = (pair.end - pair.begin) * units;
  for (int i = cta * static_cast<int>(blockDim.x) + threadIdx.x; i < count;
       i += num_ctas * static_cast<int>(blockDim.x)) {
    const int index = i / units;
    const int token = pair.begin + index, channel = 8 * (i - index * units);
    const uint4 v = load_8<kFrom, kTo>(p.v.g_rows, input_index(p.v, pair, token) + channel);
    *reinterpret_cast<uint4*>(page_row(p, p.v_pages, pair, token) + channel) = v;
    if (ring > 0 && token < pair.end - ring) continue;
    const uint4 k = load_8<kFrom, kTo>(p.k.g_rows, input_index(p.k, pair, token) + channel);
    uint16_t* g_to = ring > 0 ? ring_row(p, pair, token) : page_row(p, p.k_pages, pair, token);
    *reinterpret_cast<uint4*>(g_to + channel) = k;
  }
}

template <DType kFrom, DType kTo>
__global__ void __launch_bounds__(kMaxThreads, 1) append_kernel(const __grid_constant__ Params p) {
  __shared__ QuantizeStorage s;
  const int pair_idx = divide(blockIdx.x, p.pair_ctas);
  const int cta = static_cast<int>(blockIdx.x) - pair_idx * static_cast<int>(p.pair_ctas.value);
  const Pair pair(p, pair_idx);
  if (cta < p.quantize_ctas) {
    const auto load_new = [&](int token, int channel) {
      return load_8<kFrom, kTo>(p.k.g_rows, input_index(p.k, pair, token) + channel);
    };
    quantize_due_page<kTo>(p, pair, cta, load_new, s);
  } else {
    write_rows<kFrom, kTo>(p, pair, cta - p.quantize_ctas,
                           static_cast<int>(p.pair_ctas.value) - p.quantize_ctas);
  }
}

}  // namespace

cudaError_t launch(const Params& params, DType from, DType to, int64_t num_ctas,
                   int32_t num_threads, cudaStream_t stream) {
  const auto start = [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(num_ctas), num_threads, 0, stream>>>(params);
    return cudaGetLastError();
  };
  const bool f16 = to == DType::kF16;
  switch (from) {
    case DType::kF32:
      return start(f16 ? append_kernel<DType::kF32, DType::kF16>
                       : append_kernel<DType::kF32, DType::kBF16>);
    case DType::kF16:
      return start(f16 ? append_kernel<DType::kF16, DType::kF16>
                       : append_kernel<DType::kF16, DType::kBF16>);
    case DType::kBF16:
      return start(f16 ? append_kernel<DType::kBF16, DType::kF16>
                       : append_kernel<DType::kBF16, DType::kBF16>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace longdecode::cuda::gqa_append
