#include "cuda/host/launch.h"
#include "cuda/kernels/gqa_append/cached_rows.cuh"
#include "cuda/kernels/rotary/kernel.h"
#include "cuda/kernels/rotary/rotate.cuh"
#include "cuda/ptx/barrier.cuh"

namespace longdecode::cuda::rotary {
namespace {

using gqa_append::Pair;

constexpr int kThreads = 128;
constexpr int kMaxThreads = 32 * gqa_append::kMaxQuads;
constexpr int64_t kMaxCtas = 8192;

// Index `head` of a token's heads: q, then k, then v.
struct HeadIndex {
  int64_t row;  // of [batch, query_len]
  int sequence, token, head;

  __device__ HeadIndex(const Params& p, int64_t task) {
    const int heads = p.model.num_q_heads + 2 * p.model.num_kv_heads;
    row = task / heads;
    head = static_cast<int>(task - row * heads);
    sequence = static_cast<int>(row / p.query_len);
    token = static_cast<int>(row - int64_t{sequence} * p.query_len);
  }
};

__device__ __forceinline__ Head make_head(const Params& p, const HeadIndex& index, int position) {
  const Model& m = p.model;
  const int heads = m.num_q_heads + 2 * m.num_kv_heads;
  const int kv_head = index.head - m.num_q_heads;
  Head head;
  head.g_from = p.g_qkv + (index.row * heads + index.head) * m.head_dim;
  head.g_to = p.g_q + (index.row * m.num_q_heads + index.head) * m.head_dim;
  head.g_norm = kv_head < 0 ? m.g_q_norm : kv_head < m.num_kv_heads ? m.g_k_norm : nullptr;
  head.rotates = kv_head < m.num_kv_heads;
  head.position = position;
  return head;
}

__global__ void __launch_bounds__(kThreads) rope_kernel(const __grid_constant__ Params p) {
  ptx::launch_dependents();
  ptx::wait_dependency();
  const int kv_heads = p.model.num_kv_heads;
  const int64_t tasks =
      int64_t{p.batch} * p.query_len * (p.model.num_q_heads + 2 * p.model.num_kv_heads);
  for (int64_t task = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32; task < tasks;
       task += gridDim.x * int64_t{kThreads / 32}) {
    const HeadIndex index(p, task);
    const int num_new = p.g_query_lens != nullptr ? p.g_query_lens[index.sequence] : p.query_len;
    if (index.token >= num_new) continue;
    Head head = make_head(p, index, p.g_kv_lens[index.sequence] - num_new + index.token);
    const int kv_head = index.head - p.model.num_q_heads;
    if (kv_head >= 0) {
      const bool is_key = kv_head < kv_heads;
      head.g_to = (is_key ? p.g_k : p.g_v) +
                  (index.row * kv_heads + kv_head - (is_key ? 0 : kv_heads)) * p.model.head_dim;
    }
    finish_head(p.model, head, threadIdx.x % 32);
  }
}

// Writes one head to where it belongs in the cache, or to q.
__device__ __forceinline__ void append_head(const AppendParams& p, int64_t task, int lane) {
  const HeadIndex index(p.rope, task);
  const int kv_heads = p.rope.model.num_kv_heads;
  const int kv_head = index.head - p.rope.model.num_q_heads;
  const Pair pair(p.cache, index.sequence, kv_head < kv_heads ? kv_head : kv_head - kv_heads);
  const int position = pair.begin + index.token;
  if (position >= pair.end) return;
  Head head = make_head(p.rope, index, position);
  if (kv_head >= kv_heads) {
    head.g_to = page_row(p.cache, p.cache.v_pages, pair, position);
  } else if (kv_head >= 0) {
    head.g_to = p.cache.ring_tokens.value > 0 ? ring_row(p.cache, pair, position)
                                              : page_row(p.cache, p.cache.k_pages, pair, position);
  }
  finish_head(p.rope.model, head, lane);
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    rope_append_kernel(const __grid_constant__ AppendParams p) {
  __shared__ gqa_append::QuantizeStorage s;
  ptx::launch_dependents();
  ptx::wait_dependency();
  const int cta = static_cast<int>(blockIdx.x) - p.quantize_ctas;
  if (cta < 0) {
    // A due page ends at least kQuantizeLag tokens before the sequence does: with at most as many
    // new ones, all its keys are in the ring, and the new ones take other rows of it.
    const auto no_new = [](int, int) { return make_uint4(0, 0, 0, 0); };
    quantize_due_page<DType::kBF16>(p.cache, Pair(p.cache, blockIdx.x), 0, no_new, s);
    return;
  }
  const int heads = p.rope.model.num_q_heads + 2 * p.rope.model.num_kv_heads;
  const int64_t tasks = int64_t{p.rope.batch} * p.rope.query_len * heads;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int64_t task = int64_t{cta} * warps + threadIdx.x / 32;
  if (task < tasks) append_head(p, task, threadIdx.x % 32);
}

int64_t num_tasks(const Params& p) {
  return int64_t{p.batch} * p.query_len * (p.model.num_q_heads + 2 * p.model.num_kv_heads);
}

}  // namespace

cudaError_t launch(const Params& params, cudaStream_t stream) {
  const int64_t ctas = (num_tasks(params) + kThreads / 32 - 1) / (kThreads / 32);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ctas < kMaxCtas ? ctas : kMaxCtas));
  shape.block = dim3(kThreads);
  return launch_programmatic(rope_kernel, shape, stream, params);
}

cudaError_t launch_append(AppendParams params, int32_t page_threads, cudaStream_t stream) {
  const int32_t threads = page_threads > 0 ? page_threads : kThreads;
  params.quantize_ctas = page_threads > 0 ? params.rope.batch * params.rope.model.num_kv_heads : 0;
  const int64_t ctas = (num_tasks(params.rope) + threads / 32 - 1) / (threads / 32);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(params.quantize_ctas + ctas));
  shape.block = dim3(static_cast<unsigned>(threads));
  return launch_programmatic(rope_append_kernel, shape, stream, params);
}

}  // namespace longdecode::cuda::rotary
