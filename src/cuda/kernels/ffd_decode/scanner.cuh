// What a warp does that scans: its part of the pseudo-max, then pages of its own from a ring of its
// own. The first chunks are on their way, and the first one is folded, before the pseudo-max is
// known.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCANNER_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCANNER_CUH_

#include "cuda/kernels/ffd_decode/pseudo_max.cuh"
#include "cuda/kernels/ffd_decode/rounds.cuh"
#include "cuda/kernels/ffd_decode/scan.cuh"

namespace longdecode::cuda::ffd {

template <class C>
class Scanner {
 public:
  __device__ __forceinline__ Scanner(const Params& params, typename C::SharedStorage& storage,
                                     uint32_t s_base, const ItemContext<C>& context,
                                     const ItemCounts& counts, ChunkRing& ring)
      : p_(params),
        s_(storage),
        s_query_(s_base + C::kQueryOffset),
        s_recent_(s_base + C::kSlotsOffset + C::kValuesOffset +
                  uniform(ptx::thread_index() / 32) * C::kBorrowedBytes),
        warp_(uniform(ptx::thread_index() / 32)),
        lane_(ptx::thread_index() & 31),
        tile_shift_(params.page_shift - 4),
        first_round_(counts.num_rounds),
        item_parity_(counts.num_items & 1),
        context_(context),
        source_(params, context.item.sequence, context.item.kv_head),
        pages_(params, context.item, context.spans),
        ring_(ring) {
    const int left = pages_.num_pages - warp_ - 1;
    num_own_ = left < 0 ? 0 : left / C::kScanWarps + 1;
    num_rounds_ = pages_.template num_rounds<C>();
  }

  // The number of rounds is returned.
  __device__ __forceinline__ int run() {
    load_query();
    // Its tiles of the pseudo-max: the first one comes with the query.
    const int first_recent = context_.spans.num_quantized_always();
    const int num_recent = p_.is_dense ? 0 : context_.spans.num_always() - first_recent;
    const Run recent(num_recent, warp_, C::kScanWarps);
    if (recent.begin < recent.end) load_recent_tile(first_recent + recent.begin);
    ptx::copy_async_commit();  // so that what the ring copies is not waited for
    ptx::named_barrier_sync(kFirstTilesBarrier, C::kThreads);
    for (int i = 0; i < p_.num_stages; ++i) issue();
    ptx::copy_async_wait<0>();
    arrive_lane(s_.query_full);
    ptx::mbarrier_wait(ptx::shared_address(&s_.query_full), item_parity_);
    if (!p_.is_dense) find_max(first_recent, recent);
    LaneQuery<C> lane_query;
    if constexpr (C::kTwoLanesFold) lane_query.load(s_query_, 0, lane_);
#pragma unroll 1
    for (int round = 0; round < num_own_; ++round) {
      const uint32_t hits = p_.attends_all ? ~0u : scan_page(lane_query);
      issue();
      publish(round, hits == 0 ? 0 : scanned_tiles(round, hits));
    }
    if (num_own_ < num_rounds_) publish(num_own_, 0);
    if (num_rounds_ > 0) wait_until_taken(first_round_ + num_rounds_ - 1);
    return num_rounds_;
  }

 private:
  // Rows of all blocks; missing ones are zero.
  __device__ __forceinline__ void load_query() {
    const int rows = C::kTwoLanesFold ? 8 : 8 * p_.num_row_blocks;
    constexpr int kPieces = C::kDim / 8;
#pragma unroll 1
    for (int i = ptx::thread_index(); i < rows * kPieces; i += C::kScanThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const int token = token_of(p_, row);
      const int head = context_.item.kv_head * p_.group + row - token * p_.group;
      const bool exists = row < context_.num_real_rows(p_);
      const uint16_t* g_row = p_.g_q;
      if (exists) {
        g_row += context_.item.sequence * p_.q_batch_stride + token * p_.q_token_stride +
                 head * p_.q_head_stride + 8 * piece;
      }
      ptx::copy_async_16(s_query_ + 16 * i, g_row, exists ? 16 : 0);
    }
  }

  // Into the values of a slot: the warps that attend use it when all of the pseudo-max is known.
  __device__ __forceinline__ void load_recent_tile(int always_index) {
    const int tile = context_.spans.always_tile(always_index);
    load_recent<C>(p_, source_, context_.spans, s_recent_, tile, lane_);
  }
  __device__ __forceinline__ void find_max(int first_recent, const Run& recent) {
    PseudoMax<C> maxima(p_, s_, context_, warp_, lane_);
    maxima.clear();
#pragma unroll 1
    for (int i = recent.begin; i < recent.end; ++i) {
      if (i > recent.begin) {
        __syncwarp();
        load_recent_tile(first_recent + i);
        ptx::copy_async_wait_all();
      }
      __syncwarp();
      const int tile = context_.spans.always_tile(first_recent + i);
#pragma unroll 1
      for (int block = 0; block < maxima.num_blocks(); ++block) {
        ExactQuery<C> query;
        Scores scores;
        query.load(s_query_, block, lane_);
        score_rows<C>(s_recent_, query, lane_, scores);
        maxima.raise(tile, block, scores);
      }
    }
    maxima.publish();
  }

  // By the warps that attend. What follows polls other CTAs' results, in the way of these warps.
  __device__ __forceinline__ void wait_until_taken(int round) {
    ptx::mbarrier_wait(ptx::shared_address(&s_.round_empty[round_entry(round)]),
                       round_parity(round));
  }

  // Takes the entry of the next round and asks for its chunk.
  __device__ __forceinline__ void issue() {
    if (issued_ >= num_rounds_) return;
    const int round = first_round_ + issued_;
    const int entry = round_entry(round);
    if (round >= kRounds) wait_until_taken(round - kRounds);
    if (issued_ < num_own_) {
      if (issued_ % 32 == 0) look_up_pages();
      const int page_id = __shfl_sync(kFullWarp, window_ids_, issued_ & 31);
      const uint64_t chunk = __shfl_sync(kFullWarp, window_chunks_, issued_ & 31);
      const auto* g_chunk = reinterpret_cast<const uint8_t*>(chunk);
      if (ptx::elect_lane()) s_.page_ids[entry][warp_] = page_id;
      if (!p_.attends_all) ring_.template issue<C>(p_, g_chunk, lane_);
    }
    ++issued_;
  }
  // Of the warp's next 32 pages.
  __device__ __forceinline__ void look_up_pages() {
    const int own = issued_ + lane_;
    const int* g_id = source_.g_pages + pages_.template page<C>(own, warp_);
    window_ids_ = own < num_own_ ? ptx::load_global_i32(g_id) : 0;
    window_chunks_ = reinterpret_cast<uint64_t>(source_.g_chunks) +
                     static_cast<uint64_t>(window_ids_ * p_.chunk_page_stride);
  }

  // Hits of the page in the ring's next stage.
  __device__ __forceinline__ uint32_t scan_page(const LaneQuery<C>& lane_query) {
    const uint32_t s_chunk = ring_.wait(p_);
    if constexpr (C::kIsSm80) __syncwarp();  // a lane reads what others have copied
    const uint32_t s_constants = s_chunk + p_.code_bytes;
    uint32_t hits = 0;
    if constexpr (C::kTwoLanesFold) {
      PageFold<C> fold(p_, lane_query, s_constants, lane_);
      if (!knows_max_) {
        wait_for_max();
        needed_ = needed_score(C::row_of_column(lane_ >> 2));
      }
      hits = scan_tiles<C>(p_, s_chunk, fold.query(needed_, lane_), lane_);
    } else {
      // The rows of a sequence are all of them, whatever row block the CTA attends for: they share
      // the kept tiles.
#pragma unroll 1
      for (int block = 0; block < p_.num_row_blocks; ++block) {
        LaneQuery<C> loaded;
        loaded.load(s_query_, block, lane_);
        PageFold<C> fold(p_, loaded, s_constants, lane_);
        if (!knows_max_) wait_for_max();
        const float needed = needed_score(8 * block + (lane_ >> 2));
        hits |= scan_tiles<C>(p_, s_chunk, fold.query(needed, lane_), lane_);
      }
    }
    __syncwarp();  // the chunk is read
    ring_.release(p_);
    return hits;
  }
  __device__ __forceinline__ void wait_for_max() {
    ptx::mbarrier_wait(ptx::shared_address(&s_.pseudo_max_full), item_parity_);
    knows_max_ = true;
  }

  // Scores, before softmax_scale, that a token needs to be a candidate of the row.
  __device__ __forceinline__ float needed_score(int row) const {
    if (row >= context_.num_real_rows(p_)) return INFINITY;
    const float pseudo_max = pseudo_max_of<C>(s_, row);
    const float needed = pseudo_max - p_.delta_unscaled;
    if (!p_.certified) return needed;
    // The rounding of pseudo_max.
    return needed - 0x1p-20f * (fabsf(pseudo_max) + p_.delta_unscaled);
  }

  // Of the tiles of the warp's page of the round those that are scanned.
  __device__ __forceinline__ uint32_t scanned_tiles(int round, uint32_t hits) const {
    const int first_tile = pages_.template page<C>(round, warp_) << tile_shift_;
    const int tiles = p_.page_tiles;
    hits &= (1u << tiles) - 1;
    if (first_tile < context_.spans.sink_tiles) {
      hits &= ~0u << (context_.spans.sink_tiles - first_tile);
    }
    if (first_tile + tiles > context_.spans.scan_end) {
      hits &= (1u << (context_.spans.scan_end - first_tile)) - 1;
    }
    return hits;
  }

  __device__ __forceinline__ void publish(int round, uint32_t hits) {
    const int entry = round_entry(first_round_ + round);
    if (!ptx::elect_lane()) return;
    s_.hits[entry][warp_] = static_cast<uint8_t>(hits);
    ptx::mbarrier_arrive(ptx::shared_address(&s_.round_full[entry]));
  }

  const Params& p_;
  typename C::SharedStorage& s_;
  const uint32_t s_query_, s_recent_;
  const int warp_, lane_, tile_shift_;
  const int first_round_;  // of the item, over all items of the CTA
  const uint32_t item_parity_;
  const ItemContext<C>& context_;
  const HeadSource<C> source_;
  const SplitPages pages_;
  ChunkRing& ring_;
  int num_own_, num_rounds_;  // pages of the warp; of the split
  int issued_ = 0;            // rounds
  // Of the warp's pages 32 n + lane.
  int window_ids_ = 0;
  uint64_t window_chunks_ = 0;
  bool knows_max_ = false;
  float needed_ = 0.0f;  // of the lane's row
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_SCANNER_CUH_
