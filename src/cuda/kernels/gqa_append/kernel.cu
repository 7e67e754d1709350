#include "cuda/kernels/gqa_append/kernel.h"

#include "cuda/kernels/gqa_append/cached_rows.cuh"

namespace longdecode::cuda::gqa_append {
namespace {

constexpr int kMaxThreads = 32 * kMaxQuads;
constexpr int kBatch = 2;  // units of 8 channels whose loads a thread has in flight

// Quantising needs registers and shared memory, writing needs many threads: long chunks have a
// launch of each, few tokens one launch of both.
enum class Role { kBoth, kQuantize, kWrite };

// Threads of a CTA at most, CTAs of as many that fit in an SM at least. (fp32 keys take more
// registers.)
template <Role kRole>
constexpr int kRoleThreads = kRole == Role::kWrite ? 256 : kMaxThreads;
template <Role kRole, DType kFrom>
constexpr int role_ctas() {
  if (kRole == Role::kWrite) return 4;
  return kRole == Role::kQuantize && kFrom != DType::kF32 ? 2 : 1;
}

// V to pages; keys to pages or to the ring, of which a later token keeps the row.
template <DType kFrom, DType kTo>
__device__ __forceinline__ void write_rows(const Params& p, const Pair& pair, int cta,
                                           int num_ctas) {
  const int units = p.dim / 8, ring = static_cast<int>(p.ring_tokens.value);
  const int count = (pair.end - pair.begin) * units;
  const int step = num_ctas * static_cast<int>(blockDim.x);
  for (int first = cta * static_cast<int>(blockDim.x) + threadIdx.x; first < count;
       first += kBatch * step) {
    uint4 k[kBatch], v[kBatch];
    uint16_t *g_k[kBatch], *g_v[kBatch];  // nullptr: nothing to write
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int i = first + u * step, index = i / units;
      const int token = pair.begin + index, channel = 8 * (i - index * units);
      g_k[u] = g_v[u] = nullptr;
      if (i >= count) continue;
      v[u] = load_8<kFrom, kTo>(p.v.g_rows, input_index(p.v, pair, token) + channel);
      g_v[u] = page_row(p, p.v_pages, pair, token) + channel;
      if (ring > 0 && token < pair.end - ring) continue;
      k[u] = load_8<kFrom, kTo>(p.k.g_rows, input_index(p.k, pair, token) + channel);
      g_k[u] =
          channel + (ring > 0 ? ring_row(p, pair, token) : page_row(p, p.k_pages, pair, token));
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (g_v[u] != nullptr) *reinterpret_cast<uint4*>(g_v[u]) = v[u];
      if (g_k[u] != nullptr) *reinterpret_cast<uint4*>(g_k[u]) = k[u];
    }
  }
}

template <DType kFrom, DType kTo, Role kRole>
__global__ void __launch_bounds__(kRoleThreads<kRole>, (role_ctas<kRole, kFrom>()))
    append_kernel(const __grid_constant__ Params p) {
  const int pair_idx = divide(blockIdx.x, p.pair_ctas);
  const int cta = static_cast<int>(blockIdx.x) - pair_idx * static_cast<int>(p.pair_ctas.value);
  const Pair pair(p, pair_idx);
  if constexpr (kRole != Role::kWrite) {
    if (cta < p.quantize_ctas) {
      __shared__ QuantizeStorage s;
      const auto load_new = [&](int token, int channel) {
        return load_8<kFrom, kTo>(p.k.g_rows, input_index(p.k, pair, token) + channel);
      };
      quantize_due_page<kTo>(p, pair, cta, load_new, s);
    }
  }
  if constexpr (kRole != Role::kQuantize) {
    if (cta >= p.quantize_ctas) {
      write_rows<kFrom, kTo>(p, pair, cta - p.quantize_ctas,
                             static_cast<int>(p.pair_ctas.value) - p.quantize_ctas);
    }
  }
}

template <DType kFrom, DType kTo>
cudaError_t start(const Params& p, int64_t num_ctas, int32_t num_threads, cudaStream_t stream) {
  auto* kernel = p.quantize_ctas == 0 ? append_kernel<kFrom, kTo, Role::kWrite>
                 : p.quantize_ctas == static_cast<int>(p.pair_ctas.value)
                     ? append_kernel<kFrom, kTo, Role::kQuantize>
                     : append_kernel<kFrom, kTo, Role::kBoth>;
  kernel<<<static_cast<unsigned>(num_ctas), num_threads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <DType kFrom>
cudaError_t start_from(const Params& p, DType to, int64_t num_ctas, int32_t num_threads,
                       cudaStream_t stream) {
  return to == DType::kF16 ? start<kFrom, DType::kF16>(p, num_ctas, num_threads, stream)
                           : start<kFrom, DType::kBF16>(p, num_ctas, num_threads, stream);
}

}  // namespace

cudaError_t launch(const Params& params, DType from, DType to, int64_t num_ctas,
                   int32_t num_threads, cudaStream_t stream) {
  switch (from) {
    case DType::kF32:
      return start_from<DType::kF32>(params, to, num_ctas, num_threads, stream);
    case DType::kF16:
      return start_from<DType::kF16>(params, to, num_ctas, num_threads, stream);
    case DType::kBF16:
      return start_from<DType::kBF16>(params, to, num_ctas, num_threads, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace longdecode::cuda::gqa_append
