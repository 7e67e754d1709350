#include "cpu/tile_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/tile_amx.h"
#include "cpu/tile_prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile_attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway asks.
#include "cpu/tile_kernels-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longdecode::cpu {
namespace HWY_NAMESPACE {
namespace {

// Rows whose scores are kept at a time: 16 rows of scores and of packed queries stay in L1 while
// the tile's keys and then its values pass.
constexpr int32_t kRowChunk = 16;

// Rows [begin, begin + count) see tokens [visible.begin, visible.end) of the tile.
struct RowRun {
  int32_t begin = 0;
  int32_t count = 0;
  TokenRange visible;
};

RowRun next_run(const Tile& tile, const QueryRows& rows, int32_t begin) {
  const int32_t chunk_end = (begin / kRowChunk + 1) * kRowChunk;
  RowRun run{begin, std::min(chunk_end, rows.num_rows) - begin, {0, tile.num_tokens}};
  if (tile.visible == nullptr) return run;
  run.visible = tile.visible[begin / rows.rows_per_query];
  for (int32_t r = 1; r < run.count; ++r) {
    const TokenRange& other = tile.visible[(begin + r) / rows.rows_per_query];
    if (other.begin != run.visible.begin || other.end != run.visible.end) run.count = r;
  }
  return run;
}

constexpr int32_t kWhileScoring = TilePrefetch::kWhileScoring;
constexpr int32_t kWhileAccumulating = TilePrefetch::kWhole - kWhileScoring;
constexpr int32_t kTokenBlocks = kTileCapacity / kTokenBlock;

template <class Source>
void dot_rows(const Tile& tile, const QueryRows& rows, const RowRun& run, TilePrefetch& prefetch,
              float* scores) {
  const auto q_stride = static_cast<size_t>(packed_dim(rows.key_dim));
  const auto dim = static_cast<size_t>(rows.key_dim);
  const int32_t last = run.visible.end - 1;
  for (int32_t token = run.visible.begin; token <= last; token += kTokenBlock) {
    const void* k_rows[kTokenBlock];
    for (int32_t j = 0; j < kTokenBlock; ++j) k_rows[j] = tile.k_rows[std::min(token + j, last)];
    prefetch.advance(kWhileScoring / kTokenBlocks);
    float* out = scores + (token - run.visible.begin);
    for (int32_t r = 0; r < run.count; r += kRowBlock) {
      const float* q = rows.q + (run.begin + r) * q_stride;
      float* block_out = out + r * kTileCapacity;
      switch (std::min(kRowBlock, run.count - r)) {
        case 1:
          dot_block<Source, 1>(q, q_stride, k_rows, dim, block_out, kTileCapacity);
          break;
        case 2:
          dot_block<Source, 2>(q, q_stride, k_rows, dim, block_out, kTileCapacity);
          break;
        case 3:
          dot_block<Source, std::min(3, kRowBlock)>(q, q_stride, k_rows, dim, block_out,
                                                    kTileCapacity);
          break;
        default:
          dot_block<Source, kRowBlock>(q, q_stride, k_rows, dim, block_out, kTileCapacity);
      }
    }
  }
}

void dot_rows_any(const Tile& tile, const QueryRows& rows, const RowRun& run,
                  TilePrefetch& prefetch, float* scores) {
  switch (rows.key_dtype) {
    case DType::kF32:
      return dot_rows<SourceF32>(tile, rows, run, prefetch, scores);
    case DType::kF16:
      return dot_rows<SourceF16>(tile, rows, run, prefetch, scores);
    case DType::kBF16:
      return dot_rows<SourceBf16>(tile, rows, run, prefetch, scores);
  }
}

// o[r] = o[r] * rescale[r] + sum over tokens of p[r][token] * v_rows[token].
struct ValueTask {
  const float* p = nullptr;
  size_t p_stride = 0;
  const float* rescale = nullptr;
  const void* const* v_rows = nullptr;
  size_t num_tokens = 0;
  int32_t num_rows = 0;
  float* o = nullptr;
  size_t o_stride = 0;
  TilePrefetch* prefetch = nullptr;
  int32_t prefetch_per_token_block = 0;
};

template <class Source, int kPairs, bool kTail>
void accumulate_channels(const ValueTask& task, size_t channel) {
  for (int32_t r = 0; r < task.num_rows; r += kRowBlock) {
    const float* p = task.p + r * task.p_stride;
    float* o = task.o + r * task.o_stride;
    const auto block = [&]<int kRows>() HWY_ATTR {
      accumulate_block<Source, kRows, kPairs, kTail>(
          p, task.p_stride, task.v_rows, task.num_tokens, channel, task.rescale + r, o,
          task.o_stride, [&] { task.prefetch->advance(task.prefetch_per_token_block); });
    };
    switch (std::min(kRowBlock, task.num_rows - r)) {
      case 1:
        block.template operator()<1>();
        break;
      case 2:
        block.template operator()<2>();
        break;
      case 3:
        block.template operator()<std::min(3, kRowBlock)>();
        break;
      default:
        block.template operator()<kRowBlock>();
    }
  }
}

template <class Source>
void accumulate_rows(const ValueTask& task, size_t dim) {
  size_t channel = 0;
  for (; channel + 2 * kPair <= dim; channel += 2 * kPair) {
    accumulate_channels<Source, 2, false>(task, channel);
  }
  for (; channel + kPair <= dim; channel += kPair) {
    accumulate_channels<Source, 1, false>(task, channel);
  }
  if constexpr (kHasTail) {
    if (channel < dim) accumulate_channels<Source, 1, true>(task, channel);
  }
}

// What every kTokenBlock tokens of accumulate_block ask for.
int32_t prefetch_while_accumulating(int32_t num_rows, int32_t value_dim) {
  const auto num_passes =
      static_cast<int32_t>(((num_rows + kRowBlock - 1) / kRowBlock) *
                           (packed_dim(value_dim) + 2 * kPair - 1) / (2 * kPair));
  return std::max(1, kWhileAccumulating / kTokenBlocks / num_passes);
}

void accumulate_rows_any(const ValueTask& task, const QueryRows& rows) {
  const auto dim = static_cast<size_t>(rows.value_dim);
  switch (rows.value_dtype) {
    case DType::kF32:
      return accumulate_rows<SourceF32>(task, dim);
    case DType::kF16:
      return accumulate_rows<SourceF16>(task, dim);
    case DType::kBF16:
      return accumulate_rows<SourceBf16>(task, dim);
  }
}

// Turns the scores of a run into weights exp(s - m) under the new maxima and updates m and l.
void softmax_rows(const QueryRows& rows, const RowRun& run, const RowState& state, float* scores,
                  float* rescale) {
  const auto count = static_cast<size_t>(run.visible.end - run.visible.begin);
  // Two passes, so that the reduction of one row overlaps with the next row.
  float max[kRowChunk];
  for (int32_t r = 0; r < run.count; ++r) {
    max[r] = scale_scores(rows.softmax_scale, rows.soft_cap, count, scores + r * kTileCapacity);
  }
  for (int32_t r = 0; r < run.count; ++r) {
    float& m = state.m[run.begin + r];
    float& l = state.l[run.begin + r];
    const float new_m = max[r] > m ? max[r] : m;
    // While every score is -infinity the reference point is 0, so that -infinity gives weight 0.
    const float reference = new_m == -std::numeric_limits<float>::infinity() ? 0.0f : new_m;
    rescale[r] = new_m == m ? 1.0f : std::exp(m - reference);
    l = l * rescale[r] + exponentiate(reference, count, scores + r * kTileCapacity);
    m = new_m;
  }
}

#if HWY_TARGET == HWY_AVX3
static_assert(kLanes == AmxTiles::kBlockRows);

// softmax_rows for scores in columns, a whole tile of [token][kLanes]. Returns where the columns of
// the run begin: at any row, so at no multiple of a vector. From there on the rows of the run are
// the first lanes, and no step goes across lanes.
float* softmax_columns(const QueryRows& rows, const RowRun& run, const RowState& state,
                       float* HWY_RESTRICT block, float* HWY_RESTRICT rescale) {
  const F32 d;
  constexpr size_t kSums = 4;  // chains of additions
  float scale = rows.softmax_scale;
  if (rows.soft_cap > 0.0f) {
    scale_scores(scale, rows.soft_cap, kTileCapacity * kLanes, block);  // whole vectors
    scale = 1.0f;
  }
  float* scores = block + run.begin % kRowChunk;
  VecF32 max[kSums];
  for (VecF32& v : max) v = hn::Set(d, -HUGE_VALF);
  for (size_t i = 0; i < kTileCapacity; ++i) {
    const VecF32 s = hn::Mul(hn::LoadU(d, scores + i * kLanes), hn::Set(d, scale));
    max[i % kSums] = hn::Max(max[i % kSums], s);
    hn::StoreU(s, d, scores + i * kLanes);
  }
  const auto is_row = hn::FirstN(d, static_cast<size_t>(run.count));
  const VecF32 largest = hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3]));
  const VecF32 m = hn::MaskedLoad(is_row, d, state.m + run.begin);
  const VecF32 l = hn::MaskedLoad(is_row, d, state.l + run.begin);
  const VecF32 new_m = hn::IfThenElse(hn::Gt(largest, m), largest, m);
  const VecF32 reference = hn::IfThenZeroElse(hn::Eq(new_m, hn::Set(d, -HUGE_VALF)), new_m);
  const VecF32 factor =
      hn::IfThenElse(hn::Eq(new_m, m), hn::Set(d, 1.0f), exp_nonpositive(hn::Sub(m, reference)));
  VecF32 sum[kSums];
  for (VecF32& v : sum) v = hn::Zero(d);
  for (size_t i = 0; i < kTileCapacity; ++i) {
    const VecF32 p = exp_nonpositive(hn::Sub(hn::LoadU(d, scores + i * kLanes), reference));
    sum[i % kSums] = hn::Add(sum[i % kSums], p);
    hn::StoreU(p, d, scores + i * kLanes);
  }
  const VecF32 total = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
  hn::BlendedStore(new_m, is_row, d, state.m + run.begin);
  hn::BlendedStore(hn::MulAdd(l, factor, total), is_row, d, state.l + run.begin);
  hn::StoreU(factor, d, rescale);
  return scores;
}
#endif

// Scores from transposed keys: the channels take the place of the tokens in accumulate_rows, and
// the tile's tokens that of the value channels.
void dot_columns(const Tile& tile, const QueryRows& rows, const RowRun& run, float* scores) {
  const void* columns[kMaxPackedDim];
  for (int32_t c = 0; c < rows.key_dim; ++c) columns[c] = tile.k_columns + c * kTileCapacity;
  float ones[kRowChunk];
  std::fill_n(ones, run.count, 1.0f);
  std::fill_n(scores, run.count * kTileCapacity, 0.0f);
  const auto q_stride = static_cast<size_t>(packed_dim(rows.key_dim));
  TilePrefetch nothing(nullptr, 0, 0);
  const ValueTask task{rows.q + run.begin * q_stride,
                       q_stride,
                       ones,
                       columns,
                       static_cast<size_t>(rows.key_dim),
                       run.count,
                       scores,
                       kTileCapacity,
                       &nothing,
                       0};
  accumulate_rows<SourceF32>(task, kTileCapacity);
  if (run.visible.begin == 0) return;
  for (int32_t r = 0; r < run.count; ++r) {
    float* row_scores = scores + r * kTileCapacity;
    std::copy(row_scores + run.visible.begin, row_scores + run.visible.end, row_scores);
  }
}

void score_run(const Tile& tile, const QueryRows& rows, const RowRun& run, TilePrefetch& prefetch,
               float* scores) {
  if (tile.k_columns != nullptr) return dot_columns(tile, rows, run, scores);
  if (tile.scores != nullptr) {
    for (int32_t r = 0; r < run.count; ++r) {
      const float* row = tile.scores + (run.begin + r) * kTileCapacity;
      std::copy(row + run.visible.begin, row + run.visible.end, scores + r * kTileCapacity);
    }
    return;
  }
  dot_rows_any(tile, rows, run, prefetch, scores);
}

void AttendTile(const Tile& tile, const QueryRows& rows, const RowState& state,
                TilePrefetch& prefetch) {
  alignas(64) float scores[kRowChunk * kTileCapacity + kRowChunk];  // columns begin at any row
  float rescale[kRowChunk];
  const auto o_stride = static_cast<size_t>(packed_dim(rows.value_dim));
#if HWY_TARGET == HWY_AVX3
  const bool on_amx = rows.amx != nullptr && tile.num_tokens == kTileCapacity;
  if (on_amx) rows.amx->begin_tile(tile);
#endif
  for (int32_t begin = 0; begin < rows.num_rows;) {
    const RowRun run = next_run(tile, rows, begin);
    begin += run.count;
    if (run.visible.begin >= run.visible.end) continue;
    float* o = state.o + run.begin * o_stride;
#if HWY_TARGET == HWY_AVX3
    if (on_amx && run.visible.end - run.visible.begin == kTileCapacity) {
      rows.amx->score(run.begin, prefetch, scores);
      const float* columns = softmax_columns(rows, run, state, scores, rescale);
      rows.amx->accumulate(run.count, columns, rescale, prefetch, o);
      continue;
    }
#endif
    score_run(tile, rows, run, prefetch, scores);
    softmax_rows(rows, run, state, scores, rescale);
    const ValueTask task{scores,
                         kTileCapacity,
                         rescale,
                         tile.v_rows + run.visible.begin,
                         static_cast<size_t>(run.visible.end - run.visible.begin),
                         run.count,
                         o,
                         o_stride,
                         &prefetch,
                         prefetch_while_accumulating(run.count, rows.value_dim)};
    accumulate_rows_any(task, rows);
  }
  prefetch.finish();
}

void ScoreTile(const Tile& tile, const QueryRows& rows, float* out) {
  alignas(64) float scores[kRowChunk * kTileCapacity];
  TilePrefetch nothing(nullptr, 0, 0);
  std::fill(out, out + int64_t{rows.num_rows} * kTileCapacity,
            -std::numeric_limits<float>::infinity());
  for (int32_t begin = 0; begin < rows.num_rows;) {
    const RowRun run = next_run(tile, rows, begin);
    begin += run.count;
    if (run.visible.begin >= run.visible.end) continue;
    const auto count = static_cast<size_t>(run.visible.end - run.visible.begin);
    score_run(tile, rows, run, nothing, scores);
    for (int32_t r = 0; r < run.count; ++r) {
      float* row_scores = scores + r * kTileCapacity;
      scale_scores(rows.softmax_scale, rows.soft_cap, count, row_scores);
      std::copy_n(row_scores, count,
                  out + int64_t{run.begin + r} * kTileCapacity + run.visible.begin);
    }
  }
}

const char* TargetIsa() {
  switch (HWY_TARGET) {
    case HWY_AVX3:
      return "avx512";
    case HWY_AVX2:
      return "avx2";
    case HWY_NEON:
      return "neon";
    case HWY_SCALAR:
      return "scalar";
    default:
      return hwy::TargetName(HWY_TARGET);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longdecode::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longdecode::cpu {

HWY_EXPORT(AttendTile);
HWY_EXPORT(ScoreTile);
HWY_EXPORT(TargetIsa);

void attend_tile(const Tile& tile, const QueryRows& rows, const RowState& state,
                 TilePrefetch& prefetch) {
  HWY_DYNAMIC_DISPATCH(AttendTile)(tile, rows, state, prefetch);
}

void attend_tile(const Tile& tile, const QueryRows& rows, const RowState& state, const Tile* next) {
  TilePrefetch prefetch(next, rows.key_dim * dtype_bytes(rows.key_dtype),
                        rows.value_dim * dtype_bytes(rows.value_dtype));
  attend_tile(tile, rows, state, prefetch);
}

void score_tile(const Tile& tile, const QueryRows& rows, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreTile)(tile, rows, scores);
}

const char* dispatched_isa() { return HWY_DYNAMIC_DISPATCH(TargetIsa)(); }

}  // namespace longdecode::cpu
#endif  // HWY_ONCE
