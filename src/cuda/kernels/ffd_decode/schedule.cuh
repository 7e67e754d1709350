// Who does what, decided on the device from the lengths.
//
// An item is (sequence, kv head, row block, split), the split fastest; a CTA takes the items
// blockIdx.x, blockIdx.x + gridDim.x, ... A sequence of n pages is cut into ceil(n /
// pages_per_split) splits; split s takes the pages s, s + num_splits, ... of the sequence, so that
// hits that cluster are spread. pages_per_split is the smallest that gives every CTA at most one
// item, where that is possible.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCHEDULE_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCHEDULE_CUH_

#include "cuda/kernels/ffd_decode/spans.cuh"

namespace longdecode::cuda::ffd {

struct Item {
  int sequence = -1;  // -1: there is no such item
  int kv_head = 0, row_block = 0, split = 0, num_splits = 1;
  int first_slot = 0;  // of split 0, if num_splits > 1
  int num_items = 0;   // of all sequences
};

// value / divisor, value >= 0, divisor >= 1; a third of the instructions of an integer division.
__device__ __forceinline__ int divide(int value, int divisor) {
  if (value >= 1 << 22) return value / divisor;
  int quotient = __float2int_rz(__fdividef(static_cast<float>(value), static_cast<float>(divisor)));
  const int rest = value - quotient * divisor;  // the quotient is at most 1 off
  quotient += rest >= divisor ? 1 : (rest < 0 ? -1 : 0);
  return quotient;
}
__device__ __forceinline__ int ceil_divide(int value, int divisor) {
  return divide(value + divisor - 1, divisor);
}

// By a number of splits, most often the one that the host knows.
__device__ __forceinline__ int divide_by_splits(const Params& p, int value, int num_splits) {
  if (num_splits == static_cast<int>(p.most_splits.value)) {
    return cuda::divide(value, p.most_splits);
  }
  return divide(value, num_splits);
}

__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(kFullWarp, value); }

// Items of a sequence per split: a (kv head, row block) pair each.
__device__ __forceinline__ int heads_of(const Params& p) {
  return p.num_kv_heads * p.num_row_blocks;
}

// When every sequence can have an item: pages_per_split with which equally long ones fit exactly.
__device__ __forceinline__ int even_pages_per_split(const Params& p, int longest) {
  return ceil_divide(longest, max(1, p.num_splits_target / (p.batch * heads_of(p))));
}

// When there are more (sequence, head) pairs than CTAs: about 4 items a CTA.
__device__ __forceinline__ int crowded_pages_per_split(const Params& p, int64_t total_pages) {
  const float pages = __fdividef(static_cast<float>(total_pages) * heads_of(p),
                                 static_cast<float>(4 * p.num_splits_target));
  return static_cast<int>(fminf(pages, 1e9f)) + 1;
}

// By a warp: lane b has the pages of sequence b, or 0.
__device__ __forceinline__ int choose_pages_per_split(const Params& p, int pages) {
  if (p.pages_per_split > 0) return p.pages_per_split;
  const int longest = __reduce_max_sync(kFullWarp, pages);
  if (p.batch * heads_of(p) > p.num_splits_target) {
    return crowded_pages_per_split(p, warp_sum(pages));
  }
  int high = even_pages_per_split(p, longest);
  if (p.batch == 1) return high;
  const int limit = p.num_splits_target / heads_of(p);  // splits of all sequences
  int low = max(1, ceil_divide(warp_sum(pages), limit));
  while (low < high) {
    const int middle = (low + high) / 2;
    if (warp_sum(ceil_divide(pages, middle)) <= limit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

__device__ __forceinline__ Item locate(const Params& p, int index, int sequence, int first_item,
                                       int first_slot, int num_splits) {
  Item item;
  item.sequence = sequence;
  item.num_splits = num_splits;
  const int pair = divide_by_splits(p, index - first_item, num_splits);
  item.split = index - first_item - pair * num_splits;
  item.kv_head = p.num_row_blocks == 1 ? pair : divide(pair, p.num_row_blocks);
  item.row_block = pair - item.kv_head * p.num_row_blocks;
  item.first_slot = first_slot + pair * num_splits;
  return item;
}

// batch 1: as many splits as there are CTAs for, where there are as many pages.
__device__ __forceinline__ Item find_of_one(const Params& p, int index, const Spans& spans) {
  const int pages = work_pages(p, spans);
  const int most_splits = static_cast<int>(p.most_splits.value);
  const int num_splits = uniform(p.pages_per_split > 0 ? ceil_divide(pages, p.pages_per_split)
                                                       : min(pages, most_splits));
  Item item;
  item.num_items = num_splits * heads_of(p);
  if (index >= item.num_items) return item;
  const int num_items = item.num_items;
  item = locate(p, index, 0, 0, 0, num_splits);
  item.num_items = num_items;
  return item;
}

// batch <= kSmallBatch, by a warp.
__device__ __forceinline__ Item find_in_registers(const Params& p, int index, int lane) {
  int pages = 0;
  if (lane < p.batch) {
    const int kv_len = ptx::load_global_i32(p.g_kv_lens + lane);
    pages = work_pages(p, make_spans(p, kv_len, query_len_of(p, lane)));
  }
  const int pages_per_split = choose_pages_per_split(p, pages);
  const int num_splits = ceil_divide(pages, pages_per_split);
  const int items = num_splits * heads_of(p);
  int item_end = items, slot_end = num_splits > 1 ? items : 0;
  const int slots = slot_end;
#pragma unroll
  for (int step = 1; step < kSmallBatch; step *= 2) {
    const int other_items = __shfl_up_sync(kFullWarp, item_end, step);
    const int other_slots = __shfl_up_sync(kFullWarp, slot_end, step);
    if (lane >= step) item_end += other_items, slot_end += other_slots;
  }
  const uint32_t after = __ballot_sync(kFullWarp, item_end > index);
  if (after == 0) return Item();
  const int owner = __ffs(after) - 1;
  Item item =
      locate(p, index, uniform(owner), uniform(__shfl_sync(kFullWarp, item_end - items, owner)),
             uniform(__shfl_sync(kFullWarp, slot_end - slots, owner)),
             uniform(__shfl_sync(kFullWarp, num_splits, owner)));
  item.num_items = uniform(__shfl_sync(kFullWarp, item_end, 31));
  return item;
}

// Any batch, from what schedule_kernel wrote: a 32-ary search by a warp.
__device__ __forceinline__ Item find_in_memory(const Params& p, int index, int lane) {
  const int num_items = __ldcg(p.g_first_items + p.batch);
  if (index >= num_items) return Item();
  int low = 0, high = p.batch;  // the sequence is in [low, high)
  while (high - low > 1) {
    const int step = ceil_divide(high - low, 32);
    const int probe = min(low + lane * step, high);
    const bool at_or_before = probe < high && __ldcg(p.g_first_items + probe) <= index;
    const int last = 31 - __clz(__ballot_sync(kFullWarp, at_or_before));
    low += last * step;
    high = min(low + step, high);
  }
  const int first_item = __ldcg(p.g_first_items + low);
  const int items = __ldcg(p.g_first_items + low + 1) - first_item;
  Item item = locate(p, index, low, first_item, __ldcg(p.g_first_slots + low), items / heads_of(p));
  item.num_items = num_items;
  return item;
}

// And the tokens of its sequence. early_kv_len: of a single sequence.
__device__ __forceinline__ Item find_item(const Params& p, int early_kv_len, int index, int lane,
                                          Spans& spans) {
  const auto spans_of = [&](int sequence) {
    const int kv_len = p.batch == 1 ? early_kv_len : ptx::load_global_i32(p.g_kv_lens + sequence);
    return make_spans(p, uniform(kv_len), uniform(query_len_of(p, sequence)));
  };
  if (p.batch == 1 && p.most_splits.value > 0) {
    spans = spans_of(0);
    return find_of_one(p, index, spans);
  }
  const Item item =
      p.batch <= kSmallBatch ? find_in_registers(p, index, lane) : find_in_memory(p, index, lane);
  if (item.sequence >= 0) spans = spans_of(item.sequence);
  return item;
}

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCHEDULE_CUH_
