// The work of a CTA on one item: the pseudo-max over the always attended tokens, then
// epochs of scanning, each followed by attending the tiles that were hit when there are enough of
// them, then the always attended tiles of the split.
#ifndef LONGDECODE_CUDA_KERNELS_FFD_DECODE_WORKER_CUH_
#define LONGDECODE_CUDA_KERNELS_FFD_DECODE_WORKER_CUH_

#include "cuda/kernels/ffd_decode/epilogue.cuh"
#include "cuda/kernels/ffd_decode/scan.cuh"

namespace longdecode::cuda::ffd {

inline constexpr int kRingPage = -1;

// A block of query rows as the keys of a page need it. Local to a list of tiles: it is too large to
// be kept while scanning.
template <class C>
struct PageQuery {
  ExactQuery<C> query;
  bool is_folded = false;
  int page = 0, block = 0;
};

template <class C>
class ItemWorker {
 public:
  __device__ __forceinline__ ItemWorker(const Params& params, typename C::SharedStorage& storage,
                                        uint32_t s_base, ItemContext<C>& context,
                                        ChunkRing<C>& ring)
      : p_(params),
        s_(storage),
        s_query_(s_base + C::kQueryOffset),
        s_slots_(s_base + C::kSlotsOffset + uniform(threadIdx.x / 32) * (kSlots * C::kSlotBytes)),
        warp_(uniform(threadIdx.x / 32)),
        lane_(threadIdx.x & 31),
        tile_shift_(params.page_shift - 4),
        context_(context),
        source_(params, context.item.sequence, context.item.kv_head),
        ring_(ring) {
    const Spans& spans = context_.spans;
    const int first = context_.item.split;
    const int num_pages = spans.num_pages(tile_shift_);
    const int splits = context_.item.num_splits;
    first_page_ = spans.first_page(tile_shift_) + first;
    num_pages_ = first < num_pages ? uniform(divide(num_pages - first - 1, splits)) + 1 : 0;
    for (int i = 0; i < 2; ++i) {
      const int row = context_.row_of(C::row_of_column(2 * (lane_ & 3) + i));
      span_end_[i] =
          row < context_.num_real_rows(p_) ? row_span(p_, spans, token_of(p_, row)).end : 0;
    }
    least_end_ = row_span(p_, spans, 0).end;
  }

  __device__ __forceinline__ void run() {
    load_query();
    const int rounds = (num_pages_ + C::kWarps - 1) / C::kWarps;
    const int rounds_per_epoch = 32 >> tile_shift_;
    int parity = 0, pending = 0;
    // The first pass finds the pseudo-max; one copy of the code that reads and scores tiles serves
    // it too: instructions come from memory as cold as the cache does.
    bool finds_max = !p_.is_dense;
    if (finds_max) clear_pseudo_max();
    query_is_here_ = false;
#pragma unroll 1
    for (int round = 0, last = 0; last == 0;) {
      if (!finds_max) {
        last = round + rounds_per_epoch >= rounds;
        pending = enqueue(scan_epoch(round, min(rounds - round, rounds_per_epoch)), round, parity,
                          pending);
        round += rounds_per_epoch;
        parity ^= 1;
        if (pending < C::kAttendThreshold && last == 0) continue;
        __syncthreads();  // the queue is complete
      }
      read_tiles(finds_max, last != 0, pending);
      if (finds_max) join_pseudo_max();
      pending = 0;
      finds_max = false;
    }
  }

  RowState<C> state;

 private:
  // Page `round` of this warp, if it has that many: index in the block table.
  __device__ __forceinline__ int page_of(int round) const {
    const int index = round * C::kWarps + warp_;
    return index < num_pages_ ? first_page_ + index * context_.item.num_splits : -1;
  }
  // Page ids are looked up 32 rounds at a time.
  __device__ __forceinline__ int page_id_of(int round) {
    if (round >> 5 != window_) {
      window_ = round >> 5;
      const int page = page_of((window_ << 5) + lane_);
      window_ids_ = page >= 0 ? ptx::load_global_i32(source_.g_pages + page) : 0;
    }
    return uniform(__shfl_sync(kFullWarp, window_ids_, round & 31));
  }
  __device__ __forceinline__ void issue(int round) {
    if (page_of(round) < 0) return;
    const int page_id = page_id_of(round);
    ring_.issue(p_, source_.g_chunks + page_id * p_.chunk_page_stride, page_id, lane_);
  }
  __device__ __forceinline__ void start_ring() {
    if (p_.attends_all) return;
    for (int i = 0; i < p_.num_stages; ++i) issue(i);
  }

  // Rows of all blocks; missing ones are zero. They are on their way: read_tiles waits.
  __device__ __forceinline__ void load_query() {
    const int rows = C::kTwoLanesFold ? 8 : 8 * p_.num_row_blocks;
    constexpr int kPieces = C::kDim / 8;
    for (int i = threadIdx.x; i < rows * kPieces; i += C::kThreads) {
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

  __device__ __forceinline__ int num_blocks() const {
    return C::kTwoLanesFold ? 1 : p_.num_row_blocks;
  }
  __device__ __forceinline__ void clear_pseudo_max() {
    for (int i = lane_; i < 8 * num_blocks(); i += 32) s_.warp_max[warp_][i] = -INFINITY;
    __syncwarp();
  }
  // The largest scores of the always attended tokens of a tile.
  __device__ __forceinline__ void raise_pseudo_max(int tile, int block, const Scores& scores) {
    const int token = tile * kTileTokens + (lane_ >> 2);
    float row_max[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * block + C::row_of_column(2 * (lane_ & 3) + i);
      RowSpan span{0, 0, 0};
      if (row < context_.num_real_rows(p_)) span = row_span(p_, context_.spans, token_of(p_, row));
      row_max[i] = max_over_tokens(fmaxf(span.always(token) ? scores[i] : -INFINITY,
                                         span.always(token + 8) ? scores[2 + i] : -INFINITY));
    }
    if (2 * lane_ < C::kRows) {
      float* s_max = s_.warp_max[warp_] + 8 * block + 2 * lane_;
      s_max[0] = fmaxf(s_max[0], row_max[0]);
      s_max[1] = fmaxf(s_max[1], row_max[1]);
    }
  }
  // Over the warps, into s_.pseudo_max. Ends with a barrier.
  __device__ __forceinline__ void join_pseudo_max() {
    __syncthreads();
    for (int row = threadIdx.x; row < 8 * num_blocks(); row += C::kThreads) {
      float row_max = -INFINITY;
#pragma unroll
      for (int w = 0; w < C::kWarps; ++w) row_max = fmaxf(row_max, s_.warp_max[w][row]);
      s_.pseudo_max[row] = row_max;
    }
    __syncthreads();
  }

  // Hits of the warp's pages of `count` rounds, those of round + i at bit i * tiles of a page.
  __device__ __forceinline__ uint32_t scan_epoch(int round, int count) {
    LaneQuery<C> lane_query;  // not kept while tiles are attended
    float needed = 0.0f;
    if constexpr (C::kTwoLanesFold) {
      lane_query.load(s_query_, 0, lane_);
      const int row = C::row_of_column(lane_ >> 2);
      needed = needed_score(p_, s_.pseudo_max[row], row < context_.num_real_rows(p_));
    }
    uint32_t hits = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      int page_id = 0;
      hits |= scan_round(lane_query, needed, round + i, page_id) << (i << tile_shift_);
      if (lane_ == i) epoch_page_ids_ = page_id;
    }
    return hits;
  }

  // Tiles of the warp's page of the round that hold a candidate.
  __device__ __forceinline__ uint32_t scan_round(const LaneQuery<C>& lane_query, float needed,
                                                 int round, int& page_id) {
    const int page = page_of(round);
    if (page < 0) return 0;
    uint32_t hits = ~0u;
    if (p_.attends_all) {
      page_id = page_id_of(round);
    } else {
      const uint32_t s_chunk = ring_.wait();
      page_id = ring_.page_id();
      hits = scan_page<C>(p_, s_chunk, s_query_, lane_query, needed, s_.pseudo_max,
                          context_.num_real_rows(p_), lane_);
      ring_.release(p_);
      issue(round + p_.num_stages);
      if (hits == 0) return 0;
    }
    // Of the page's tiles those that are scanned.
    const int first_tile = page << tile_shift_, tiles = 1 << tile_shift_;
    hits &= (1u << tiles) - 1;
    if (first_tile < context_.spans.sink_tiles) {
      hits &= ~0u << (context_.spans.sink_tiles - first_tile);
    }
    if (first_tile + tiles > context_.spans.scan_end) {
      hits &= (1u << (context_.spans.scan_end - first_tile)) - 1;
    }
    if (!p_.attends_all) prefetch_tiles<C>(p_, source_, hits, page_id, lane_);
    return hits;
  }

  // Adds the hits of the epoch that starts at `round` to the queue, in the order of the warps; the
  // queue's length is returned. The queue is read after another barrier.
  __device__ __forceinline__ int enqueue(uint32_t hits, int round, int parity, int pending) {
    if (lane_ == 0) s_.masks[parity][warp_] = hits;
    __syncthreads();
    const int count = lane_ < C::kWarps ? __popc(s_.masks[parity][lane_]) : 0;
    const int total = warp_sum(count), before = warp_sum(lane_ < warp_ ? count : 0);
    context_.num_hits += total;
    if (hits != 0) {
      const int page_id = __shfl_sync(kFullWarp, epoch_page_ids_, lane_ >> tile_shift_);
      const int own_round = round + (lane_ >> tile_shift_);
      if ((hits >> lane_ & 1) != 0) {
        const int at = pending + before + __popc(hits & ((1u << lane_) - 1));
        const int tile = (page_of(own_round) << tile_shift_) + (lane_ & ((1 << tile_shift_) - 1));
        s_.queue[at] = make_int2(tile, page_id);
        mark_kept(tile);
      }
    }
    return pending + total;
  }

  // The split's share of the always attended tiles.
  __device__ __forceinline__ int own_always() const {
    const int left = context_.spans.num_always() - context_.item.split;
    return left <= 0 ? 0 : uniform(divide(left - 1, context_.item.num_splits)) + 1;
  }
  __device__ __forceinline__ void mark_kept(int tile) const {
    if (p_.g_kept_tiles == nullptr || context_.item.row_block != 0) return;
    const int64_t head =
        static_cast<int64_t>(context_.item.sequence) * p_.num_kv_heads + context_.item.kv_head;
    atomicOr(p_.g_kept_tiles + head * p_.kept_tiles_stride + tile / 32, 1u << (tile % 32));
  }
  __device__ __forceinline__ uint32_t slot_address(int slot) const {
    return s_slots_ + slot * C::kSlotBytes;
  }

  // Tiles shared evenly among the warps, in runs; the next one is on its way while one is read.
  // finds_max: all always attended tiles, scored for every block of rows. Else, attended for the
  // item's block: the split's share of them (with_always), then those in the queue.
  __device__ __forceinline__ void read_tiles(bool finds_max, bool with_always, int num_queued) {
    const int first_always = finds_max ? 0 : context_.item.split;
    const int always_step = finds_max ? 1 : context_.item.num_splits;
    const int num_always =
        finds_max ? context_.spans.num_always() : (with_always ? own_always() : 0);
    const int count = num_always + (finds_max ? 0 : num_queued);
    const int begin = count * warp_ / C::kWarps, end = count * (warp_ + 1) / C::kWarps;
    if (begin == end && query_is_here_) return;
    PageQuery<C> query;
    int tile = 0;
#pragma unroll 1
    for (int i = begin; i <= end; ++i) {
      const int previous = tile;
      const uint32_t s_slot = slot_address(i % kSlots);
      if (i < end) {
        int page_id;
        if (i < num_always) {
          tile = context_.spans.always_tile(first_always + i * always_step);
          page_id = uniform(ptx::load_global_i32(source_.g_pages + (tile >> tile_shift_)));
          if (!finds_max && lane_ == 0) mark_kept(tile);
        } else {
          const int2 entry = s_.queue[i - num_always];
          tile = uniform(entry.x), page_id = uniform(entry.y);
        }
        load_keys<C>(p_, source_, context_.spans, s_slot, tile, page_id, lane_);
        if (!finds_max) {
          load_values<C>(p_, source_, context_.spans, s_slot, tile, page_id, lane_);
        }
      }
      ptx::copy_async_commit();
      if (!query_is_here_) {  // it came with the first tile
        start_ring();         // behind what the pseudo-max waits for
        ptx::copy_async_wait_all();
        __syncthreads();
        query_is_here_ = true;
      }
      if (i == begin) continue;
      ptx::copy_async_wait<1>();
      __syncwarp();
      read_tile(finds_max, previous, (i - 1) % kSlots, query);
      __syncwarp();
    }
  }

  __device__ __forceinline__ void read_tile(bool finds_max, int tile, int slot,
                                            PageQuery<C>& query) {
    Scores scores;
    int block = finds_max ? 0 : context_.item.row_block;
    const int end = finds_max ? num_blocks() : block + 1;
#pragma unroll 1
    for (; block < end; ++block) {
      score_tile(tile, slot, block, query, scores);
      if (finds_max) raise_pseudo_max(tile, block, scores);
    }
    if (!finds_max) attend(tile, slot, scores);
  }

  __device__ __forceinline__ void attend(int tile, int slot, Scores& scores) {
    const int token = tile * kTileTokens + (lane_ >> 2);
    const bool is_masked = (tile + 1) * kTileTokens > least_end_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool hidden = is_masked && token + 8 * (i / 2) >= span_end_[i % 2];
      scores[i] = hidden ? -INFINITY : scores[i] * p_.softmax_scale_log2e;
    }
    state.soften(scores);
    state.add_values(slot_address(slot) + C::kValuesOffset, scores, lane_);
  }

  // Scores of the tile in a slot for a block of rows.
  __device__ __forceinline__ void score_tile(int tile, int slot, int block, PageQuery<C>& current,
                                             Scores& scores) {
    const uint32_t s_slot = slot_address(slot);
    const bool is_quantized = tile * kTileTokens < context_.spans.num_quantized;
    const int page = is_quantized ? tile >> tile_shift_ : kRingPage;
    if constexpr (C::kDim > 128) current.is_folded = false;  // or it takes too many registers
    if (!current.is_folded || page != current.page || block != current.block) {
      if (is_quantized) {
        current.query.fold(s_query_, block, s_slot + C::kConstantsOffset, lane_);
      } else {
        current.query.load(s_query_, block, lane_);
      }
      current.is_folded = true;
      current.page = page;
      current.block = block;
    }
    if (is_quantized) {
      score_planes<C>(s_slot, current.query, tile & ((1 << tile_shift_) - 1), lane_, scores);
    } else {
      score_rows<C>(s_slot, current.query, lane_, scores);
    }
  }

  const Params& p_;
  typename C::SharedStorage& s_;
  const uint32_t s_query_, s_slots_;
  const int warp_, lane_, tile_shift_;
  ItemContext<C>& context_;
  const HeadSource<C> source_;
  ChunkRing<C>& ring_;
  int first_page_, num_pages_;        // of the split; pages are num_splits apart
  int window_ = -1, window_ids_ = 0;  // see page_id_of
  int epoch_page_ids_ = 0;            // lane r: of the epoch's round r
  bool query_is_here_ = false;
  int span_end_[2];  // tokens that the block's rows 2 t, 2 t + 1 see
  int least_end_;    // tokens before it are seen by every query token
};

}  // namespace longdecode::cuda::ffd

#endif  // LONGDECODE_CUDA_KERNELS_FFD_DECODE_WORKER_CUH_
