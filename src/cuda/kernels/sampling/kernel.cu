// A cluster of 8 CTAs chooses the token of a sequence. Greedy reads the logits once; else each CTA
// keeps its slice of them in shared memory, and all sums are of integers, so that the same input
// gives the same token.
#include "cuda/device/counter_random.h"
#include "cuda/host/launch.h"
#include "cuda/kernels/sampling/kernel.h"
#include "cuda/kernels/sampling/threshold.cuh"
#include "cuda/ptx/barrier.cuh"

namespace longdecode::cuda::sampling {
namespace {

struct Storage {
  WarpValues best, candidates, totals, ties, masses;
  HistogramStorage histogram;
};

// The tokens of a CTA: ids begin ... begin + count - 1.
struct Slice {
  int begin, count;

  __device__ explicit Slice(const Params& p) {
    const int size = (p.vocab_size + kClusterCtas - 1) / kClusterCtas;
    begin =
        min(static_cast<int>(cooperative_groups::this_cluster().block_rank()) * size, p.vocab_size);
    count = min(size, p.vocab_size - begin);
  }
};

__device__ __forceinline__ int sequence_of_cluster() {
  return static_cast<int>(blockIdx.x) / kClusterCtas;
}

__device__ __forceinline__ void store_token(const Params& p, int token) {
  const int sequence = sequence_of_cluster();
  const int step = p.g_steps[sequence];
  p.g_ids[sequence] = token;
  if (p.g_history != nullptr && step >= 0 && step < p.history_steps) {
    p.g_history[int64_t{step} * p.batch + sequence] = token;
  }
  p.g_steps[sequence] = step + 1;
}

// The best of the cluster's warps' best.
__device__ __forceinline__ uint64_t cluster_best(WarpValues& s_best, uint64_t best) {
  gather(s_best, warp_max(best));
  uint64_t all = 0;
  for (int i = threadIdx.x % 32; i < kClusterCtas * kWarps; i += 32) {
    const uint64_t other = s_best.of[i / kWarps][i % kWarps];
    all = other > all ? other : all;
  }
  return warp_max(all);
}

__global__ void __launch_bounds__(kThreads) greedy_kernel(const __grid_constant__ Params p) {
  __shared__ WarpValues s_best;
  ptx::launch_dependents();
  ptx::wait_dependency();
  const Slice slice(p);
  const float* g_slice = p.g_logits + int64_t{sequence_of_cluster()} * p.vocab_size + slice.begin;
  uint64_t best = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < slice.count; i += kThreads) {
    const uint64_t other = ranked(key_of(g_slice[i]), slice.begin + i);
    best = other > best ? other : best;
  }
  best = cluster_best(s_best, best);
  if (slice.begin == 0 && threadIdx.x == 0) store_token(p, id_of(best));
}

// Top-k, then top-p: what may be drawn.
__device__ __forceinline__ Kept choose_kept(const Params& p, const uint32_t* s_keys, int count,
                                            uint32_t max_key, Storage& s) {
  Kept kept;
  if (p.top_k > 0) {
    int chosen = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) chosen += s_keys[i] > 0;
    gather(s.candidates, warp_total(chosen));
    if (sum_all(s.candidates) > p.top_k) {
      kept = reduce_kept(s_keys, count, kept, Count{}, p.top_k, s.histogram);
    }
  }
  if (p.top_p < 1.0f) {
    const Mass mass{max_key, 1.0f};
    uint64_t sum = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) {
      if (s_keys[i] > kept.key) sum += mass(s_keys[i]);
    }
    gather(s.totals, warp_total(sum));
    sum = sum_all(s.totals);
    if (kept.key > 0) sum += kept.ties * mass(kept.key);
    const auto target = static_cast<uint64_t>(ceil(static_cast<double>(sum) * p.top_p));
    kept = reduce_kept(s_keys, count, kept, mass, target > 0 ? target : 1, s.histogram);
  }
  return kept;
}

// The keys of a warp, in the order of ids, 32 at a time. visit(index in the slice, key; 0: nothing
// or not kept) is called by whole warps; ties of `kept` are ranked from first_tie on.
template <class Visit>
__device__ __forceinline__ void visit_kept(const uint32_t* s_keys, int count, const Kept& kept,
                                           uint64_t first_tie, const Visit& visit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int size = (count + kThreads - 1) / kThreads * 32;
  const int end = min(count, (warp + 1) * size);
  for (int i = warp * size; i < end; i += 32) {
    uint32_t key = i + lane < end ? s_keys[i + lane] : 0;
    const bool tie = key > 0 && key == kept.key;
    const uint32_t ties = __ballot_sync(kFullWarp, tie);
    if (key < kept.key || (tie && first_tie + __popc(ties & ((1u << lane) - 1)) >= kept.ties)) {
      key = 0;
    }
    first_tie += __popc(ties);
    visit(i + lane, key);
  }
}

// The token at the drawn place of the kept ones' masses, laid out in the order of ids.
__device__ __forceinline__ void draw(const Params& p, const uint32_t* s_keys, const Slice& slice,
                                     const Kept& kept, const Mass& mass, Storage& s) {
  const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t ties = 0;
  visit_kept(s_keys, slice.count, {kept.key, ~uint64_t{0}}, 0,
             [&](int, uint32_t key) { ties += key > 0 && key == kept.key; });
  gather(s.ties, warp_total(ties));
  const uint64_t first_tie = sum_before(s.ties, rank, warp);
  uint64_t sum = 0;
  visit_kept(s_keys, slice.count, kept, first_tie,
             [&](int, uint32_t key) { sum += key > 0 ? mass(key) : 0; });
  sum = warp_total(sum);
  gather(s.masses, sum);
  const int sequence = sequence_of_cluster();
  const uint64_t random = counter_random(p.seed, sequence, p.g_steps[sequence]);
  const uint64_t place = __umul64hi(random, sum_all(s.masses));
  uint64_t before = sum_before(s.masses, rank, warp);
  // All have read the step; the one warp that holds the place counts it on.
  cooperative_groups::this_cluster().sync();
  if (place < before || place >= before + sum) return;
  visit_kept(s_keys, slice.count, kept, first_tie, [&](int index, uint32_t key) {
    const uint64_t own = key > 0 ? mass(key) : 0;
    const uint64_t reached = before + warp_prefix(own, lane);
    if (place >= reached - own && place < reached) store_token(p, slice.begin + index);
    before = __shfl_sync(kFullWarp, reached, 31);
  });
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint32_t s_keys[];  // [slice]
  __shared__ Storage s;
  ptx::launch_dependents();
  ptx::wait_dependency();
  const Slice slice(p);
  const float* g_slice = p.g_logits + int64_t{sequence_of_cluster()} * p.vocab_size + slice.begin;
  uint64_t best = 0;
#pragma unroll 8
  for (int i = threadIdx.x; i < slice.count; i += kThreads) {
    const uint32_t key = key_of(g_slice[i]);
    s_keys[i] = key;
    const uint64_t other = ranked(key, slice.begin + i);
    best = other > best ? other : best;
  }
  best = cluster_best(s.best, best);
  if (id_of(best) < 0) {
    if (slice.begin == 0 && threadIdx.x == 0) store_token(p, -1);
    return;
  }
  const auto max_key = static_cast<uint32_t>(best >> 32);
  const Kept kept = choose_kept(p, s_keys, slice.count, max_key, s);
  draw(p, s_keys, slice, kept, Mass{max_key, p.inverse_temperature}, s);
}

}  // namespace

cudaError_t launch(const Params& params, bool greedy, cudaStream_t stream) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(params.batch * kClusterCtas));
  shape.block = dim3(kThreads);
  shape.cluster = kClusterCtas;
  if (!greedy) shape.shared_bytes = int64_t{4} * slice_of(params.vocab_size);
  return launch_programmatic(greedy ? greedy_kernel : sample_kernel, shape, stream, params);
}

}  // namespace longdecode::cuda::sampling
