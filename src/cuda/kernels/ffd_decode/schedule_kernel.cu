// Large batches are scheduled by a kernel of their own: one CTA, a thread has neighbouring
// sequences.
#include "cuda/kernels/ffd_decode/launch.h"
#include "cuda/kernels/ffd_decode/schedule.cuh"

namespace longdecode::cuda::ffd {
namespace {

constexpr int kScheduleThreads = 1024;

// Sum over the CTA of `value`, and what the threads before this one have.
struct Scan {
  int before, total;
};
__device__ __forceinline__ Scan scan_block(int value, int (&s_warps)[32]) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int end = warp_inclusive_sum(value, lane);
  __syncthreads();
  if (lane == 31) s_warps[warp] = end;
  __syncthreads();
  const int others = s_warps[lane];
  return {end - value + warp_sum(lane < warp ? others : 0), warp_sum(others)};
}

__global__ void __launch_bounds__(kScheduleThreads)
    schedule_kernel(const __grid_constant__ Params p) {
  __shared__ int s_warps[32];
  __shared__ unsigned long long s_total;
  if (threadIdx.x == 0) s_total = 0;
  __syncthreads();
  const int per_thread = ceil_divide(p.batch, kScheduleThreads);
  const int begin = min(p.batch, static_cast<int>(threadIdx.x) * per_thread);
  const int end = min(p.batch, begin + per_thread);
  const auto pages_of = [&](int b) {
    return work_pages(p, make_spans(p, ptx::load_global_i32(p.g_kv_lens + b), query_len_of(p, b)));
  };
  unsigned long long sum = 0;
  int longest = 0;
  for (int b = begin; b < end; ++b) {
    const int pages = pages_of(b);
    sum += pages;
    longest = max(longest, pages);
  }
  atomicAdd(&s_total, sum);
  s_warps[threadIdx.x / 32] = __reduce_max_sync(kFullWarp, longest);
  __syncthreads();
  longest = __reduce_max_sync(kFullWarp, s_warps[threadIdx.x & 31]);
  int pages_per_split = p.pages_per_split;
  if (pages_per_split == 0) {
    pages_per_split = p.batch * heads_of(p) > p.num_splits_target
                          ? crowded_pages_per_split(p, static_cast<int64_t>(s_total))
                          : even_pages_per_split(p, longest);
  }
  int items = 0, slots = 0;
  for (int b = begin; b < end; ++b) {
    const int num_splits = ceil_divide(pages_of(b), pages_per_split);
    items += num_splits * heads_of(p);
    slots += num_splits > 1 ? num_splits * heads_of(p) : 0;
  }
  const Scan item_scan = scan_block(items, s_warps);
  const Scan slot_scan = scan_block(slots, s_warps);
  int first_item = item_scan.before, first_slot = slot_scan.before;
  for (int b = begin; b < end; ++b) {
    p.g_first_items[b] = first_item;
    p.g_first_slots[b] = first_slot;
    const int num_splits = ceil_divide(pages_of(b), pages_per_split);
    first_item += num_splits * heads_of(p);
    first_slot += num_splits > 1 ? num_splits * heads_of(p) : 0;
  }
  if (threadIdx.x == 0) p.g_first_items[p.batch] = item_scan.total;
}

}  // namespace

cudaError_t launch_schedule(const Params& params, cudaStream_t stream) {
  schedule_kernel<<<1, kScheduleThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace longdecode::cuda::ffd
