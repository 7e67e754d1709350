// The smallest key that is kept, by radix: three histograms of 11, 11 and 10 bits over the cluster.
#ifndef LONGDECODE_CUDA_KERNELS_SAMPLING_THRESHOLD_CUH_
#define LONGDECODE_CUDA_KERNELS_SAMPLING_THRESHOLD_CUH_

#include "cuda/kernels/sampling/keys.cuh"

namespace longdecode::cuda::sampling {

inline constexpr int kBins = 2048;
inline constexpr int kBlockBins = kBins / kClusterCtas;  // that a CTA sums over the cluster

// What is kept: keys above `key`, and the first `ties` (by id) of those equal to it.
struct Kept {
  uint32_t key = 0;
  uint64_t ties = ~uint64_t{0};
};

struct HistogramStorage {
  uint32_t low[kBins], high[kBins];  // 64-bit sums of this CTA's slice
  uint64_t block[kBlockBins];        // the cluster's sums of bins rank * kBlockBins ...
  uint64_t blocks[kClusterCtas];     // sum of each CTA's block
  uint64_t above;                    // mass above the chosen bin
  uint32_t digit;                    // the chosen bin
};

// Adds to a bin. Shared memory has no 64-bit addition: a loop that retries would stand in for it.
__device__ __forceinline__ void add_mass(HistogramStorage& s, uint32_t bin, uint64_t mass) {
  const auto low = static_cast<uint32_t>(mass);
  auto high = static_cast<uint32_t>(mass >> 32);
  if (atomicAdd(&s.low[bin], low) > ~low) ++high;
  if (high > 0) atomicAdd(&s.high[bin], high);
}

// The chosen digit of a round from the block that holds it, by one warp of its CTA, told to all:
// the largest digit with above + (mass of digits from it on) >= target.
__device__ __forceinline__ void choose_digit(HistogramStorage& s, uint64_t above, uint64_t target,
                                             int rank, int lane) {
  auto cluster = cooperative_groups::this_cluster();
  constexpr int kLaneBins = kBlockBins / 32;
  // Lane 0 has the highest bins, so that a prefix runs downwards.
  const int highest = kBlockBins - 1 - lane * kLaneBins;
  uint64_t own = 0;
  for (int i = 0; i < kLaneBins; ++i) own += s.block[highest - i];
  const uint64_t reached = above + warp_prefix(own, lane);
  const uint32_t enough = __ballot_sync(kFullWarp, reached >= target);
  if (enough == 0 || lane != __ffs(static_cast<int>(enough)) - 1) return;
  uint64_t sum = reached - own;
  int bin = highest;
  while (sum + s.block[bin] < target) sum += s.block[bin--];
  for (int i = 0; i < kClusterCtas; ++i) {
    HistogramStorage* other = cluster.map_shared_rank(&s, i);
    other->above = sum;
    other->digit = static_cast<uint32_t>(rank * kBlockBins + bin);
  }
}

// Sums the cluster's bins and chooses a digit; all threads get it, and the mass above.
__device__ __forceinline__ uint32_t reduce_round(HistogramStorage& s, uint64_t& above,
                                                 uint64_t target) {
  auto cluster = cooperative_groups::this_cluster();
  const int thread = threadIdx.x, rank = static_cast<int>(cluster.block_rank());
  cluster.sync();  // every CTA's bins are filled
  if (thread < kBlockBins) {
    uint64_t sum = 0;
    for (int i = 0; i < kClusterCtas; ++i) {
      const HistogramStorage* other = cluster.map_shared_rank(&s, i);
      const int bin = rank * kBlockBins + thread;
      sum += uint64_t{other->high[bin]} << 32 | other->low[bin];
    }
    s.block[thread] = sum;
  }
  __syncthreads();
  if (thread < 32) {
    uint64_t sum = 0;
    for (int i = thread; i < kBlockBins; i += 32) sum += s.block[i];
    sum = warp_total(sum);
    if (thread < kClusterCtas) cluster.map_shared_rank(&s, thread)->blocks[rank] = sum;
  }
  cluster.sync();
  // The highest block that reaches the target has the digit.
  uint64_t before = above;
  int block = kClusterCtas - 1;
  while (block > 0 && before + s.blocks[block] < target) before += s.blocks[block--];
  if (thread < 32 && block == rank) choose_digit(s, before, target, rank, thread);
  cluster.sync();
  above = s.above;
  return s.digit;
}

// The fewest of `kept`, largest first, whose masses reach target (1 .. the mass of all kept ones).
template <class MassOf>
__device__ __forceinline__ Kept reduce_kept(const uint32_t* s_keys, int count, const Kept& kept,
                                            const MassOf& mass, uint64_t target,
                                            HistogramStorage& s) {
  const bool first_cta = cooperative_groups::this_cluster().block_rank() == 0;
  const bool has_ties = kept.key > 0;  // else `kept` is everything
  uint64_t above = 0;
  uint32_t prefix = 0;
#pragma unroll 1
  for (int round = 0; round < 3; ++round) {
    const int shift = round == 0 ? 21 : round == 1 ? 10 : 0;
    const int bits = round == 2 ? 10 : 11;
    for (int i = threadIdx.x; i < kBins; i += kThreads) s.low[i] = s.high[i] = 0;
    __syncthreads();
    const auto digit_of = [&](uint32_t key) { return key >> shift & ((1u << bits) - 1); };
    const auto matches = [&](uint32_t key) {
      return round == 0 || key >> (shift + bits) == prefix;
    };
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const uint32_t key = s_keys[i];
      if (key > kept.key && matches(key)) add_mass(s, digit_of(key), mass(key));
    }
    // Once for the cluster; how many ties there are in which slice does not matter here.
    if (first_cta && threadIdx.x == 0 && has_ties && matches(kept.key)) {
      add_mass(s, digit_of(kept.key), kept.ties * mass(kept.key));
    }
    prefix = prefix << bits | reduce_round(s, above, target);
  }
  const uint64_t each = mass(prefix);
  return {prefix, (target - above + each - 1) / each};
}

}  // namespace longdecode::cuda::sampling

#endif  // LONGDECODE_CUDA_KERNELS_SAMPLING_THRESHOLD_CUH_
