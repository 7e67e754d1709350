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
  if (p.g_history != nullptr && step >= 0) {
    p.g_history[int64_t{step % p.history_steps} * p.batch + sequence] = token;
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

// The keys of a warp: `size` of them from `begin` on, a multiple of 32 but for the slice's end.
struct WarpKeys {
  int begin, end, size;

  __device__ WarpKeys(int count, int warp) {
    size = (count + kThreads - 1) / kThreads * 32;
    begin = warp * size;
    end = min(count, begin + size);
  }
};

// Clears the keys that are not kept.
__device__ __forceinline__ void clear_others(uint32_t* s_keys, const WarpKeys& keys,
                                             const Kept& kept, int rank, int warp, int lane,
                                             Storage& s) {
  if (kept.key == 0) return;
  uint64_t ties = 0;
  for (int i = keys.begin + lane; i < keys.end; i += 32) ties += s_keys[i] == kept.key;
  gather(s.ties, warp_total(ties));
  uint64_t before = sum_before(s.ties, rank, warp);
  for (int i = keys.begin; i < keys.end; i += 32) {
    const uint32_t key = i + lane < keys.end ? s_keys[i + lane] : 0;
    const bool tie = key == kept.key;
    const uint32_t all = __ballot_sync(kFullWarp, tie);
    const uint64_t tie_rank = before + __popc(all & ((1u << lane) - 1));
    if (i + lane < keys.end && (key < kept.key || (tie && tie_rank >= kept.ties))) {
      s_keys[i + lane] = 0;
    }
    before += __popc(all);
  }
  __syncwarp();
}

// The token at the drawn place of the kept ones' masses, laid out by CTA, warp, lane (a lane has
// every 32nd key of its warp) and then id.
__device__ __forceinline__ void draw(const Params& p, const uint32_t* s_keys, const Slice& slice,
                                     const WarpKeys& keys, const Mass& mass, int rank, int warp,
                                     int lane, Storage& s) {
  const auto mass_at = [&](int i) {
    return i < keys.end && s_keys[i] > 0 ? mass(s_keys[i]) : uint64_t{0};
  };
  uint64_t sum = 0;
  for (int i = keys.begin + lane; i < keys.end; i += 32) sum += mass_at(i);
  const uint64_t warp_mass = warp_total(sum);
  gather(s.masses, warp_mass);
  const int sequence = sequence_of_cluster();
  const uint64_t random =
      counter_random(p.g_seeds[sequence], static_cast<uint64_t>(p.g_steps[sequence]));
  const uint64_t place = __umul64hi(random, sum_all(s.masses));
  const uint64_t warp_before = sum_before(s.masses, rank, warp);
  // All have read the step; the one warp that holds the place counts it on.
  cooperative_groups::this_cluster().sync();
  if (place < warp_before || place >= warp_before + warp_mass) return;
  const uint64_t reached = warp_before + warp_prefix(sum, lane);
  const int owner =
      __ffs(static_cast<int>(__ballot_sync(kFullWarp, place < reached && sum > 0))) - 1;
  uint64_t before = __shfl_sync(kFullWarp, reached - sum, owner);
  for (int i = keys.begin + owner; i < keys.end; i += 32 * 32) {  // the owner's keys, one a lane
    const uint64_t own = mass_at(i + 32 * lane);
    const uint64_t to = before + warp_prefix(own, lane);
    if (place >= to - own && place < to) store_token(p, slice.begin + i + 32 * lane);
    before = __shfl_sync(kFullWarp, to, 31);
  }
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
  const int rank = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const WarpKeys keys(slice.count, warp);
  const Kept kept = choose_kept(p, s_keys, slice.count, max_key, s);
  clear_others(s_keys, keys, kept, rank, warp, lane, s);
  draw(p, s_keys, slice, keys, Mass{max_key, p.inverse_temperature}, rank, warp, lane, s);
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
