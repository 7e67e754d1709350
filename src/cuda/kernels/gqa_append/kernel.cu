#include "cuda/kernels/gqa_append/kernel.h"

#include "cuda/kernels/gqa_append/quantize.cuh"

namespace longdecode::cuda::gqa_append {
namespace {

constexpr int kMaxThreads = 32 * kMaxQuads;

// A (sequence, kv head) of the launch: tokens begin ... end - 1 are new.
struct Pair {
  int sequence, head, begin, end;

  __device__ Pair(const Params& p, int pair) {
    sequence = pair / p.num_kv_heads;
    head = pair - sequence * p.num_kv_heads;
    const int num_new = p.g_query_lens != nullptr ? p.g_query_lens[sequence] : p.max_new;
    end = p.g_kv_lens[sequence];
    begin = max(0, end - min(num_new, p.max_new));
  }
};

__device__ __forceinline__ int quantized_pages(const Params& p, int kv_len) {
  return kv_len <= p.quantize_lag ? 0 : (kv_len - p.quantize_lag) / p.page_size;
}

__device__ __forceinline__ int64_t input_index(const NewRows& rows, const Pair& pair, int token) {
  return pair.sequence * rows.batch_stride + (token - pair.begin) * rows.token_stride +
         pair.head * rows.head_stride;
}

__device__ __forceinline__ uint16_t* page_row(const Params& p, const StoredRows& rows,
                                              const Pair& pair, int token) {
  const int page = token / p.page_size;
  const int64_t page_id = p.g_block_table[pair.sequence * p.block_table_stride + page];
  return rows.g_rows + page_id * rows.page_stride + pair.head * rows.head_stride +
         (token - page * p.page_size) * rows.token_stride;
}

__device__ __forceinline__ uint16_t* ring_row(const Params& p, const Pair& pair, int token) {
  const int row = token - divide(token, p.ring_tokens) * static_cast<int>(p.ring_tokens.value);
  return p.ring.g_rows + p.g_slots[pair.sequence] * p.ring.page_stride +
         pair.head * p.ring.head_stride + row * p.ring.token_stride;
}

// The index-th page that this append makes due, if there is one. Keys of older tokens come from the
// ring; in a launch of their own, because the rows written later in the same append reuse it.
template <DType kFrom, DType kTo>
__device__ __forceinline__ void quantize(const Params& p, const Pair& pair, int index,
                                         QuantizeStorage& s) {
  const int page = quantized_pages(p, pair.begin) + index;
  if (page >= quantized_pages(p, pair.end)) return;
  const int first = page * p.page_size;
  const auto load = [&](int token_in_page, int channel) {
    if (channel >= p.dim) return make_uint4(0, 0, 0, 0);
    const int token = first + token_in_page;
    return token < pair.begin
               ? load_8<kTo, kTo>(ring_row(p, pair, token), channel)
               : load_8<kFrom, kTo>(p.k.g_rows, input_index(p.k, pair, token) + channel);
  };
  const int64_t page_id = p.g_block_table[pair.sequence * p.block_table_stride + page];
  quantize_page<kTo>(
      p, load, p.g_chunks + page_id * p.chunk_page_stride_bytes + pair.head * p.chunk_bytes,
      p.g_residuals + page_id * p.residual_page_stride_bytes + pair.head * p.residual_bytes, s);
}

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
    quantize<kFrom, kTo>(p, pair, cta, s);
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
