// What a warp does that attends: the pseudo-max over the always attended tokens, which the scan
// waits for, then the split's share of these tokens, then tiles that were hit, while others are
// still being scanned.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_ATTENDER_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_ATTENDER_CUH_

#include "cuda/kernels/ffd_decode/pseudo_max.cuh"
#include "cuda/kernels/ffd_decode/rounds.cuh"

namespace longdecode::cuda::ffd {

inline constexpr int kRingPage = -1;
// Groups of copies of a tile: the constants of its page, everything else.
inline constexpr int kTileCopies = 2;

// A block of query rows as the keys of a page need it.
template <class C>
struct PageQuery {
  ExactQuery<C> query;
  bool is_folded = false;
  int page = 0, block = 0;
};

// What comes out of a list of tiles instead of a tile.
inline constexpr int kNotYet = -1, kNoMore = -2;

template <class C>
class Attender {
 public:
  __device__ __forceinline__ Attender(const Params& params, typename C::SharedStorage& storage,
                                      uint32_t s_base, const ItemContext<C>& context,
                                      const ItemCounts& counts)
      : p_(params),
        s_(storage),
        s_query_(s_base + C::kQueryOffset),
        s_slots_(s_base + C::kSlotsOffset +
                 (uniform(ptx::thread_index() / 32) - C::kScanWarps) * (kSlots * C::kSlotBytes)),
        warp_(uniform(ptx::thread_index() / 32) - C::kScanWarps),
        lane_(ptx::thread_index() & 31),
        tile_shift_(params.page_shift - 4),
        first_round_(counts.num_rounds),
        item_parity_(counts.num_items & 1),
        context_(context),
        maxima_(params, storage, context, uniform(ptx::thread_index() / 32),
                ptx::thread_index() & 31),
        source_(params, context.item.sequence, context.item.kv_head),
        pages_(params, context.item, context.spans) {
    num_rounds_ = pages_.template num_rounds<C>();
  }

  // The number of rounds is returned.
  __device__ __forceinline__ int run() {
    if (p_.is_dense) {
      let_rings_start();
      wait_for_query();
    }
    // One copy of the code that reads and scores tiles serves both passes: instructions come from
    // memory as cold as the cache does.
#pragma unroll 1
    for (int pass = p_.is_dense ? 1 : 0; pass < 2; ++pass) {
      const bool finds_max = pass == 0;
      if (finds_max) maxima_.clear();
      read_tiles(finds_max);
      if (finds_max) {
        maxima_.publish();
        // The warps that scan are through with their part of the slots.
        ptx::mbarrier_wait(ptx::shared_address(&s_.pseudo_max_full), item_parity_);
      }
    }
    store_state<C>(state_, s_slots_, s_, warp_, lane_);
    if (warp_ == 0 && lane_ == 0) s_.num_hits = num_hits_;
    arrive_lane(s_.states_full);
    return num_rounds_;
  }

 private:
  // The scan warps start their rings behind the first tile of this warp.
  __device__ __forceinline__ void let_rings_start() {
    ptx::named_barrier_arrive(kFirstTilesBarrier, C::kThreads);
  }

  __device__ __forceinline__ void wait_for_query() {
    ptx::mbarrier_wait(ptx::shared_address(&s_.query_full), item_parity_);
  }

  __device__ __forceinline__ void mark_kept(int tile) const {
    if (p_.g_kept_tiles == nullptr || context_.item.row_block != 0 || lane_ != 0) return;
    const int64_t head =
        static_cast<int64_t>(context_.item.sequence) * p_.num_kv_heads + context_.item.kv_head;
    atomicOr(p_.g_kept_tiles + head * p_.kept_tiles_stride + tile / 32, 1u << (tile % 32));
  }

  // The warp's list of tiles: a run of the always attended ones, then of the hits of every round.
  // finds_max: of all quantised ones, else of the split's share.
  __device__ __forceinline__ void start_list(bool finds_max) {
    const int left = context_.spans.num_always() - context_.item.split;
    int count = context_.spans.num_quantized_always();
    if (!finds_max) {
      count = left <= 0 ? 0 : uniform(divide_by_splits(p_, left - 1, context_.item.num_splits)) + 1;
    }
    first_always_ = finds_max ? 0 : context_.item.split;
    always_step_ = finds_max ? 1 : context_.item.num_splits;
    const Run run(count, warp_, C::kAttendWarps);
    always_at_ = run.begin;
    always_end_ = run.end;
    window_end_ = always_at_;
  }
  // The next tile, or kNotYet, if it is not known and `waits` is false, or kNoMore.
  __device__ __forceinline__ int take(bool finds_max, bool waits, int& page_id) {
    int tile;
    if (always_at_ < always_end_) {
      if (always_at_ == window_end_) look_up_always();
      tile = context_.spans.always_tile(first_always_ + always_at_ * always_step_);
      page_id = uniform(__shfl_sync(kFullWarp, page_ids_, always_at_ - window_end_ + 32));
      ++always_at_;
      if (finds_max) return tile;
    } else {
      if (finds_max) return kNoMore;
      while ((hits_low_ | hits_high_) == 0) {
        if (round_ == num_rounds_) return kNoMore;
        if (!read_round(waits)) return kNotYet;
      }
      int bit;
      if (hits_low_ != 0) {
        bit = __ffs(hits_low_) - 1;
        hits_low_ &= hits_low_ - 1;
      } else {
        bit = __ffs(hits_high_) + 31;
        hits_high_ &= hits_high_ - 1;
      }
      page_id = uniform(__shfl_sync(kFullWarp, page_ids_, bit >> 3));
      tile = (pages_.template page<C>(round_ - 1, bit >> 3) << tile_shift_) + (bit & 7);
    }
    mark_kept(tile);
    return tile;
  }
  // Ids of 32 always attended tiles.
  __device__ __forceinline__ void look_up_always() {
    const int at = always_at_ + lane_;
    page_ids_ = 0;
    if (at < always_end_) {
      const int tile = context_.spans.always_tile(first_always_ + at * always_step_);
      page_ids_ = ptx::load_global_i32(source_.g_pages + (tile >> tile_shift_));
    }
    window_end_ = always_at_ + 32;
  }
  // The warp's hits of the next round: of all of them, in the order of warp and tile, a run. The
  // runs of n hits have n / kAttendWarps tiles or one more, and the long ones take turns.
  __device__ __forceinline__ bool read_round(bool waits) {
    const int round = first_round_ + round_, entry = round_entry(round);
    const uint32_t s_full = ptx::shared_address(&s_.round_full[entry]);
    if (waits) {
      ptx::mbarrier_wait(s_full, round_parity(round));
    } else if (!ptx::mbarrier_test_wait(s_full, round_parity(round))) {
      return false;
    }
    ++round_;
    const uint2 hits = *reinterpret_cast<const uint2*>(s_.hits[entry]);
    const uint32_t low = uniform(hits.x), high = C::kScanWarps > 4 ? uniform(hits.y) : 0;
    if ((low | high) != 0) {
      page_ids_ = lane_ < C::kScanWarps ? s_.page_ids[entry][lane_] : 0;
      const int count_low = __popc(low), count = count_low + __popc(high);
      const int turn = (warp_ - num_hits_) & (C::kAttendWarps - 1);
      const int least = count / C::kAttendWarps, longer = count % C::kAttendWarps;
      const int begin = turn * least + min(turn, longer);
      const int end = begin + least + (turn < longer ? 1 : 0);
      const uint32_t before = (1u << lane_) - 1;
      const int rank_low = __popc(low & before), rank_high = count_low + __popc(high & before);
      hits_low_ =
          __ballot_sync(kFullWarp, (low >> lane_ & 1) != 0 && rank_low >= begin && rank_low < end);
      hits_high_ = __ballot_sync(kFullWarp,
                                 (high >> lane_ & 1) != 0 && rank_high >= begin && rank_high < end);
      num_hits_ += count;
    }
    arrive_warp(s_.round_empty[entry]);
    return true;
  }

  __device__ __forceinline__ uint32_t slot_address(int slot) const {
    return s_slots_ + slot * C::kSlotBytes;
  }

  __device__ __forceinline__ bool is_quantized(int tile) const {
    return tile * kTileTokens < context_.spans.num_quantized;
  }

  // finds_max: scores the tiles for every block of rows. Else attends them for the item's block.
  // The next tile is on its way while one is read, if it is known.
  __device__ __forceinline__ void read_tiles(bool finds_max) {
    start_list(finds_max);
    PageQuery<C> query;
    bool is_first = finds_max, has_query = !finds_max;
    int current = kNotYet, slot = 0;
#pragma unroll 1
    while (true) {
      int page_id = 0;
      const int next = take(finds_max, current == kNotYet, page_id);
      if (next >= 0 && is_quantized(next)) {
        load_constants<C>(p_, source_, slot_address(slot), page_id, lane_);
      }
      ptx::copy_async_commit();
      if (next >= 0) {
        load_keys<C>(p_, source_, context_.spans, slot_address(slot), next, page_id, lane_);
        if (!finds_max) {
          load_values<C>(p_, source_, context_.spans, slot_address(slot), next, page_id, lane_);
        }
      }
      ptx::copy_async_commit();
      if (is_first) {
        let_rings_start();
        is_first = false;
      } else if (!has_query) {
        wait_for_query();
        has_query = true;
      }
      if (current != kNotYet) {
        read_tile(finds_max, current, slot ^ 1, query);
        __syncwarp();
      }
      if (next == kNoMore && has_query) break;
      current = next == kNoMore ? kNotYet : next;
      slot ^= 1;
    }
  }

  __device__ __forceinline__ void read_tile(bool finds_max, int tile, int slot,
                                            PageQuery<C>& query) {
    Scores scores = {};
    int block = finds_max ? 0 : context_.item.row_block;
    const int end = finds_max ? maxima_.num_blocks() : block + 1;
#pragma unroll 1
    for (; block < end; ++block) {
      score_tile(tile, slot, block, query, scores);
      if (finds_max) maxima_.raise(tile, block, scores);
    }
    if (!finds_max) attend(tile, slot, scores);
  }

  __device__ __forceinline__ void attend(int tile, int slot, Scores& scores) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] *= p_.softmax_scale_log2e;
    if ((tile + 1) * kTileTokens > context_.spans.common_end) mask(tile, scores);
    state_.soften(scores);
    state_.add_values(slot_address(slot) + C::kValuesOffset, scores, lane_);
  }

  // Tokens that a row does not see.
  __device__ __forceinline__ void mask(int tile, Scores& scores) const {
    const int token = tile * kTileTokens + (lane_ >> 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = context_.row_of(C::row_of_column(2 * (lane_ & 3) + i));
      int end = 0;
      if (row < context_.num_real_rows(p_)) {
        end = row_span(p_, context_.spans, token_of(p_, row)).end;
      }
      if (token >= end) scores[i] = -INFINITY;
      if (token + 8 >= end) scores[2 + i] = -INFINITY;
    }
  }

  // Scores of the tile in a slot for a block of rows.
  __device__ __forceinline__ void score_tile(int tile, int slot, int block, PageQuery<C>& current,
                                             Scores& scores) {
    const uint32_t s_slot = slot_address(slot);
    const bool has_planes = is_quantized(tile);
    const int page = has_planes ? tile >> tile_shift_ : kRingPage;
    if constexpr (C::kDim > 128) current.is_folded = false;  // or it takes too many registers
    if (!current.is_folded || page != current.page || block != current.block) {
      if (has_planes) {
        // The page's constants, which for a hit the scan has brought to the L2, are there first.
        ptx::copy_async_wait<kTileCopies + 1>();
        __syncwarp();
        current.query.fold(s_query_, block, s_slot + C::kConstantsOffset, lane_);
      } else {
        current.query.load(s_query_, block, lane_);
      }
      current.is_folded = true;
      current.page = page;
      current.block = block;
    }
    ptx::copy_async_wait<kTileCopies>();
    __syncwarp();
    if (has_planes) {
      score_planes<C>(s_slot, current.query, tile & ((1 << tile_shift_) - 1), lane_, scores);
    } else {
      score_rows<C>(s_slot, current.query, lane_, scores);
    }
  }

  const Params& p_;
  typename C::SharedStorage& s_;
  const uint32_t s_query_, s_slots_;
  const int warp_, lane_, tile_shift_;
  const int first_round_;  // of the item, over all items of the CTA
  const uint32_t item_parity_;
  const ItemContext<C>& context_;
  PseudoMax<C> maxima_;
  const HeadSource<C> source_;
  const SplitPages pages_;
  RowState<C> state_;
  int num_rounds_, round_ = 0;
  int first_always_ = 0, always_step_ = 1, always_at_ = 0, always_end_ = 0, window_end_ = 0;
  uint32_t hits_low_ = 0, hits_high_ = 0;  // of the last round read, the warp's: bit 8 warp + tile
  int page_ids_ = 0;  // lane w: of scan warp w's page of that round; of always attended tile w
  int num_hits_ = 0;  // of all attend warps
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_ATTENDER_CUH_
