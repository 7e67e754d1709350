// The loading side: the producer warp (schedule, block table, K tiles by TMA) and the query rows.
#ifndef LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LOAD_CUH_
#define LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LOAD_CUH_

#include "cuda/kernels/mla_decode/sm90/schedule.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace longdecode::cuda::mla_sm90 {

// A segment whose sequence is kNoMoreSegments ends the consumers.
inline constexpr int32_t kNoMoreSegments = -1;

// The CTA's part of the grid, and the sequence that it will start with if the schedule is strided
// (-1: it cannot be).
struct Place {
  int worker, row_block, guess;

  __device__ __forceinline__ explicit Place(const Params& params) {
    const int block = ptx::block_index();
    worker = divide(block, params.num_row_blocks);
    row_block = block - worker * static_cast<int>(params.num_row_blocks.value);
    const int num_splits = static_cast<int>(params.num_splits.value);
    guess = worker < num_splits * params.batch ? divide(worker, params.num_splits) : -1;
  }
};

// Query rows of a row block into s.q: rows that do not exist are zero. By 128 threads, with
// cp.async: wait, fence and barrier are the caller's. A thread copies 16-byte units of one row.
template <class C>
__device__ __forceinline__ void load_query(const Params& params, uint32_t s_base, int sequence,
                                           int row_block, int tid) {
  constexpr int kUnits = kKeyDim * 2 / 16;
  constexpr int kThreadsPerRow = C::kRows == 8 ? 8 : 128 / C::kRows;
  static_assert(kUnits % kThreadsPerRow == 0);
  const int row = tid / kThreadsPerRow;
  if (row >= C::kRows) return;
  const int global_row = row_block * C::kRows + row;
  const int token = divide(global_row, params.num_q_heads);
  const int head = global_row - token * static_cast<int>(params.num_q_heads.value);
  const int query_len = params.g_query_lens != nullptr
                            ? ptx::load_global_i32(params.g_query_lens + sequence)
                            : params.query_len;
  const bool exists = token < min(query_len, params.query_len);
  const uint16_t* g_row = params.g_q;
  if (exists) {
    g_row += sequence * params.q_batch_stride + token * params.q_token_stride +
             head * params.q_head_stride;
  }
  const uint32_t s_row = LD_SHARED(C, s_base, q) + row * 128;
#pragma unroll(C::kSplitRoles ? 4 : kUnits / kThreadsPerRow)
  for (int i = 0; i < kUnits / kThreadsPerRow; ++i) {
    const int unit = tid % kThreadsPerRow + i * kThreadsPerRow;
    const uint32_t s_to = s_row + (unit >> 3) * C::kQChunkBytes + (((unit ^ row) & 7) << 4);
    ptx::copy_async_16(s_to, g_row + (exists ? unit * 8 : 0), exists ? 16 : 0);
  }
}

// Page ids of consecutive visits of a segment, spread over the lanes. A visit is one table entry:
// a tile of 64 tokens has 64 / page_size of them, at least one.
struct PageWindow {
  int visits_shift;  // log2(visits per tile)
  int tiles_shift;   // log2(tiles per page)
  int lane_visit;    // of the tile; which table entry this lane looks up
  int lane_tile;     // of the window
  int page_id;

  __device__ __forceinline__ void init(const Params& params) {
    visits_shift = max(0, 6 - params.page_shift);
    tiles_shift = max(0, params.page_shift - 6);
    lane_tile = (threadIdx.x & 31) >> visits_shift;
    lane_visit = (threadIdx.x & 31) & ((1 << visits_shift) - 1);
  }
  __device__ __forceinline__ int tiles_held() const { return 32 >> visits_shift; }
  // Looks up the entries of tiles tile, tile + stride, ...; entries at `limit` or later are not
  // read.
  __device__ __forceinline__ void look_up(const Params& params, int sequence, int tile, int stride,
                                          int64_t limit) {
    const int64_t entry =
        (static_cast<int64_t>(tile + lane_tile * stride) << visits_shift >> tiles_shift) +
        lane_visit;
    const int32_t* g_row = params.g_block_table + sequence * params.block_table_stride;
    page_id = entry < limit ? ptx::load_global_i32(g_row + entry) : 0;
  }
};

// The maps of the latent pool: boxes of a whole tile (or of one chunk of a page that is smaller
// than a tile), and of one chunk of a tile or a smaller page.
struct KeyMaps {
  const CUtensorMap *tile, *chunk;
};

// Marked evict-first, but for many rows, whose blocks read K from L2 (64 heads 297 us instead of
// 303).
template <class C>
__device__ __forceinline__ void load_box(uint32_t s_to, const CUtensorMap* map, int row, int chunk,
                                         int page_id, uint32_t s_full) {
  if constexpr (!C::kSplitRoles) {
    ptx::tma_load_4d(s_to, map, 0, row, chunk, page_id, s_full, ptx::kEvictFirst);
  } else {
    ptx::tma_load_4d(s_to, map, 0, row, chunk, page_id, s_full);
  }
}

// One tile of K into a free stage: one box of 9 chunks if a page holds a whole tile (for a CTA's
// first tile up to 32 rows nine boxes of one, on three barriers), else a box per page and chunk.
// Tokens past the sequence's last page are not loaded.
template <class C>
__device__ __forceinline__ void load_tile(const KeyMaps& maps, const Params& params,
                                          uint32_t s_base, int stage, uint32_t parity, int tile,
                                          int kv_len, const PageWindow& pages, int window_tile,
                                          bool is_first) {
  const int lane = threadIdx.x & 31;
  const uint32_t s_stage = LD_SHARED(C, s_base, ring) + stage * kStageBytes;
  const uint32_t s_full = LD_SHARED(C, s_base, k_full) + 8 * stage;
  const uint32_t s_empty = LD_SHARED(C, s_base, k_empty) + 8 * stage;
  if (pages.visits_shift == 0) {
    const int page_id = __shfl_sync(kFullWarp, pages.page_id, window_tile);
    const int row = (tile & ((1 << pages.tiles_shift) - 1)) * kTileTokens;
    if (is_first && !C::kSplitRoles) {
      constexpr int kBoxes = kKeyChunks / kFirstBoxes;  // that one barrier waits for
      const int part = lane / kBoxes;
      const uint32_t s_part =
          part == 0 ? s_full : LD_SHARED(C, s_base, first_full) + 8 * (part - 1);
      if (lane < kKeyChunks && lane % kBoxes == 0) {
        ptx::mbarrier_arrive_expect_tx(s_part, kBoxes * kChunkBytes);
      }
      __syncwarp();
      if (lane < kKeyChunks) {
        load_box<C>(s_stage + lane * kChunkBytes, maps.chunk, row, lane, page_id, s_part);
      }
    } else if (lane == 0) {
      ptx::mbarrier_wait(s_empty, parity);
      ptx::mbarrier_arrive_expect_tx(s_full, kStageBytes);
      load_box<C>(s_stage, maps.tile, row, 0, page_id, s_full);
    }
    return;
  }
  const int page_size = 1 << params.page_shift;
  const int tokens = min(kTileTokens, kv_len - tile * kTileTokens);
  const int visits = (tokens + page_size - 1) >> params.page_shift;
  if (lane == 0) {
    ptx::mbarrier_wait(s_empty, parity);
    ptx::mbarrier_arrive_expect_tx(s_full, visits * page_size * kKeyChunks * 128);
    if (is_first && !C::kSplitRoles) {
      for (int box = 1; box < kFirstBoxes; ++box) {
        ptx::mbarrier_arrive(LD_SHARED(C, s_base, first_full) + 8 * (box - 1));
      }
    }
  }
  __syncwarp();
  for (int visit = 0; visit < visits; ++visit) {
    const int page_id =
        __shfl_sync(kFullWarp, pages.page_id, (window_tile << pages.visits_shift) + visit);
    if (lane < kKeyChunks) {
      load_box<C>(s_stage + lane * kChunkBytes + visit * page_size * 128, maps.tile, 0, lane,
                  page_id, s_full);
    }
  }
}

// An exchanging sequence: chunk `split` of the other tiles into the second stage, which is free.
// entries: the page ids of the sequence's table entries 0, 1, ..., one a lane.
template <class C>
__device__ __forceinline__ void load_other_chunks(const KeyMaps& maps, const Params& params,
                                                  uint32_t s_base, const Segment& segment,
                                                  const PageWindow& entries) {
  const int lane = threadIdx.x & 31;
  const int page_rows = min(1 << params.page_shift, kTileTokens);
  const int tile = entries.lane_tile;
  const bool loads = tile != segment.split && lane * page_rows < segment.kv_len;
  const uint32_t s_full = LD_SHARED(C, s_base, k_full) + 8;
  const uint32_t num_boxes = __popc(__ballot_sync(kFullWarp, loads));
  // Once the own tile is there, and with it, mostly, the others in the L2 (b16 512 0.5 us more if
  // after the first third).
  if (segment.num_tiles > 0) {
    ptx::mbarrier_wait(LD_SHARED(C, s_base, k_full), 0);
    ptx::mbarrier_wait(LD_SHARED(C, s_base, first_full) + 8 * (kFirstBoxes - 2), 0);
  }
  if (lane == 0) ptx::mbarrier_arrive_expect_tx(s_full, num_boxes * page_rows * 128);
  __syncwarp();
  if (loads) {
    const int row = (tile & ((1 << entries.tiles_shift) - 1)) * kTileTokens;
    load_box<C>(LD_SHARED(C, s_base, ring) + kStageBytes + tile * kChunkBytes +
                    entries.lane_visit * page_rows * 128,
                maps.chunk, row, segment.split, entries.page_id, s_full);
  }
}

template <class C>
__device__ __forceinline__ void publish_segment(uint32_t s_base, int slot, uint32_t parity,
                                                const Segment& segment) {
  if ((threadIdx.x & 31) != 0) return;
  ptx::mbarrier_wait(LD_SHARED(C, s_base, segment_empty) + 8 * slot, parity ^ 1);
  const uint32_t s_segment = LD_SHARED(C, s_base, segments) + 32 * slot;
  ptx::store_shared(s_segment, make_int4(segment.sequence, segment.kv_len, segment.first_tile,
                                         segment.num_tiles));
  ptx::store_shared(s_segment + 16, make_int4(segment.tile_stride, segment.num_splits,
                                              segment.split, segment.first_worker));
  ptx::mbarrier_arrive(LD_SHARED(C, s_base, segment_full) + 8 * slot);
}

template <class C>
__device__ __forceinline__ void note_split(uint32_t s_base, const Segment& segment,
                                           uint32_t index) {
  if ((threadIdx.x & 31) != 0) return;
  ptx::store_shared(
      LD_SHARED(C, s_base, splits) + 16 * index,
      make_int4(segment.sequence, segment.first_worker, segment.num_splits, segment.split));
}

// The tag of this run's partials.
__device__ __forceinline__ uint32_t load_tag(const Params& params) {
  return ptx::load_global_volatile(params.g_counters) + 1;
}

// The last CTA that has read the number of the run raises it for the next run.
__device__ __forceinline__ void count_run(const Params& params, uint32_t tag) {
  if ((threadIdx.x & 31) != 0 || !params.may_split) return;
  if (atomicAdd(params.g_counters + 1, 1) != gridDim.x - 1) return;
  params.g_counters[0] = tag;
  params.g_counters[1] = 0;
}

// The producer warp. `pages` holds a guess: the entries of a strided schedule's tiles
// split, split + S, ..., fetched before the lengths were known, `entries` the first 32 entries of
// the sequence.
template <class C>
__device__ __forceinline__ void produce(const KeyMaps& maps, const Params& params, uint32_t s_base,
                                        Schedule& schedule, PageWindow pages,
                                        const PageWindow& entries, uint32_t tag) {
  int stage = 0, slot = 0;
  uint32_t num_splits = 0, num_tiles = 0;
  int exchanged_kv_len = 0;
  uint32_t stage_parity = 1, slot_parity = 0;
  Segment segment;
  bool is_first = true;
  if ((threadIdx.x & 31) == 0) ptx::store_shared(LD_SHARED(C, s_base, tag), tag);
  while (schedule.next(params, segment)) {
    const int num_held = pages.tiles_held();
    // What of the guess is right: everything if the stride is, else the first tile.
    const bool all_right = segment.tile_stride == static_cast<int>(params.num_splits.value);
    int next_lookup = schedule.strided() ? (all_right ? num_held : 1) : 0;
    int window_begin = 0;
    if (segment.num_tiles == 0) publish_segment<C>(s_base, slot, slot_parity, segment);
#pragma unroll 1
    for (int i = 0; i < segment.num_tiles; ++i) {
      const int tile = segment.first_tile + i * segment.tile_stride;
      if (i == next_lookup) {
        const int num_pages = (segment.kv_len + (1 << params.page_shift) - 1) >> params.page_shift;
        pages.look_up(params, segment.sequence, tile, segment.tile_stride, num_pages);
        window_begin = i;
        next_lookup = i + num_held;
      }
      load_tile<C>(maps, params, s_base, stage, stage_parity, tile, segment.kv_len, pages,
                   i - window_begin, is_first);
      is_first = false;
      if (++stage == kStages) stage = 0, stage_parity ^= 1;
      // After the first load, which nothing should delay.
      if (i == 0) publish_segment<C>(s_base, slot, slot_parity, segment);
    }
    if (++slot == kSegmentSlots) slot = 0, slot_parity ^= 1;
    if (exchanges<C>(segment)) {
      exchanged_kv_len = segment.kv_len;
      count_run(params, tag);  // not later: the warp will be waited for
      load_other_chunks<C>(maps, params, s_base, segment, entries);
    }
    if (segment.num_splits > 1) note_split<C>(s_base, segment, num_splits++);
    num_tiles += segment.num_tiles;
  }
  if ((threadIdx.x & 31) == 0) {
    ptx::store_shared(LD_SHARED(C, s_base, num_splits), num_splits);
    ptx::store_shared(LD_SHARED(C, s_base, num_tiles), num_tiles);
    ptx::store_shared(LD_SHARED(C, s_base, exchanged_kv_len),
                      static_cast<uint32_t>(exchanged_kv_len));
  }
  segment = Segment{kNoMoreSegments, 0, 0, 0, 0, 0, 0, 0};
  publish_segment<C>(s_base, slot, slot_parity, segment);
  if (exchanged_kv_len == 0) count_run(params, tag);
}

}  // namespace longdecode::cuda::mla_sm90

#endif  // LONGDECODE_CUDA_KERNELS_MLA_DECODE_SM90_LOAD_CUH_
