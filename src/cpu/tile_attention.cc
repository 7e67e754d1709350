#include "cpu/tile_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/tile_amx.h"

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
constexpr int32_t kLineBytes = 64;

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

// To L2: two tiles do not fit L1. A tile is asked for while the one before it is scored; spreading
// the requests over its values too was slower (0.73 of the plain read, against 0.84 at group 4).
// Always inline: g++ 12 takes a function that only prefetches for one without effects and drops the
// call.
HWY_INLINE void prefetch_row(const void* row, int64_t num_bytes) {
  const char* bytes = static_cast<const char*>(row);
  for (int64_t i = 0; i < num_bytes; i += kLineBytes) __builtin_prefetch(bytes + i, 0, 2);
}

HWY_INLINE void prefetch_tokens(const Tile& next, const QueryRows& rows, int32_t token) {
  const int32_t end = std::min(token + kTokenBlock, next.num_tokens);
  for (int32_t j = token; j < end; ++j) {
    prefetch_row(next.k_rows[j], rows.key_dim * dtype_bytes(rows.key_dtype));
    if (next.v_rows != nullptr && next.v_rows[j] != next.k_rows[j]) {
      prefetch_row(next.v_rows[j], rows.value_dim * dtype_bytes(rows.value_dtype));
    }
  }
}

template <class Source>
void dot_rows(const Tile& tile, const QueryRows& rows, const RowRun& run, const Tile* next,
              float* scores) {
  const auto q_stride = static_cast<size_t>(packed_dim(rows.key_dim));
  const auto dim = static_cast<size_t>(rows.key_dim);
  const int32_t last = run.visible.end - 1;
  for (int32_t token = run.visible.begin; token <= last; token += kTokenBlock) {
    const void* k_rows[kTokenBlock];
    for (int32_t j = 0; j < kTokenBlock; ++j) k_rows[j] = tile.k_rows[std::min(token + j, last)];
    if (next != nullptr) prefetch_tokens(*next, rows, token);
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

void dot_rows_any(const Tile& tile, const QueryRows& rows, const RowRun& run, const Tile* next,
                  float* scores) {
  switch (rows.key_dtype) {
    case DType::kF32:
      return dot_rows<SourceF32>(tile, rows, run, next, scores);
    case DType::kF16:
      return dot_rows<SourceF16>(tile, rows, run, next, scores);
    case DType::kBF16:
      return dot_rows<SourceBf16>(tile, rows, run, next, scores);
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
};

template <class Source, int kPairs, bool kTail>
void accumulate_channels(const ValueTask& task, size_t channel) {
  for (int32_t r = 0; r < task.num_rows; r += kRowBlock) {
    const float* p = task.p + r * task.p_stride;
    float* o = task.o + r * task.o_stride;
    const auto block = [&]<int kRows>() HWY_ATTR {
      accumulate_block<Source, kRows, kPairs, kTail>(p, task.p_stride, task.v_rows, task.num_tokens,
                                                     channel, task.rescale + r, o, task.o_stride);
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

// Scores from transposed keys: the channels take the place of the tokens in accumulate_rows, and
// the tile's tokens that of the value channels.
void dot_columns(const Tile& tile, const QueryRows& rows, const RowRun& run, float* scores) {
  const void* columns[kMaxPackedDim];
  for (int32_t c = 0; c < rows.key_dim; ++c) columns[c] = tile.k_columns + c * kTileCapacity;
  float ones[kRowChunk];
  std::fill_n(ones, run.count, 1.0f);
  std::fill_n(scores, run.count * kTileCapacity, 0.0f);
  const auto q_stride = static_cast<size_t>(packed_dim(rows.key_dim));
  const ValueTask task{rows.q + run.begin * q_stride,     q_stride,  ones,   columns,
                       static_cast<size_t>(rows.key_dim), run.count, scores, kTileCapacity};
  accumulate_rows<SourceF32>(task, kTileCapacity);
  if (run.visible.begin == 0) return;
  for (int32_t r = 0; r < run.count; ++r) {
    float* row_scores = scores + r * kTileCapacity;
    std::copy(row_scores + run.visible.begin, row_scores + run.visible.end, row_scores);
  }
}

void score_run(const Tile& tile, const QueryRows& rows, const RowRun& run, const Tile* next,
               float* scores) {
  if (tile.k_columns != nullptr) return dot_columns(tile, rows, run, scores);
  dot_rows_any(tile, rows, run, next, scores);
}

void AttendTile(const Tile& tile, const QueryRows& rows, const RowState& state, const Tile* next) {
  alignas(64) float scores[kRowChunk * kTileCapacity];
  float rescale[kRowChunk];
  const auto o_stride = static_cast<size_t>(packed_dim(rows.value_dim));
#if HWY_TARGET == HWY_AVX3
  const bool on_amx = rows.amx != nullptr && tile.num_tokens == kTileCapacity;
  if (on_amx) rows.amx->begin_tile(tile, next);
#endif
  for (int32_t begin = 0; begin < rows.num_rows;) {
    const RowRun run = next_run(tile, rows, begin);
    begin += run.count;
    if (run.visible.begin >= run.visible.end) continue;
    float* o = state.o + run.begin * o_stride;
#if HWY_TARGET == HWY_AVX3
    if (on_amx && run.visible.end - run.visible.begin == kTileCapacity) {
      rows.amx->score(run.begin, run.count, scores);
      softmax_rows(rows, run, state, scores, rescale);
      rows.amx->accumulate(run.count, scores, rescale, o);
      continue;
    }
#endif
    score_run(tile, rows, run, run.begin == 0 ? next : nullptr, scores);
    softmax_rows(rows, run, state, scores, rescale);
    const ValueTask task{scores,
                         kTileCapacity,
                         rescale,
                         tile.v_rows + run.visible.begin,
                         static_cast<size_t>(run.visible.end - run.visible.begin),
                         run.count,
                         o,
                         o_stride};
    accumulate_rows_any(task, rows);
  }
}

void ScoreTile(const Tile& tile, const QueryRows& rows, float* out) {
  alignas(64) float scores[kRowChunk * kTileCapacity];
  std::fill(out, out + int64_t{rows.num_rows} * kTileCapacity,
            -std::numeric_limits<float>::infinity());
  for (int32_t begin = 0; begin < rows.num_rows;) {
    const RowRun run = next_run(tile, rows, begin);
    begin += run.count;
    if (run.visible.begin >= run.visible.end) continue;
    const auto count = static_cast<size_t>(run.visible.end - run.visible.begin);
    score_run(tile, rows, run, nullptr, scores);
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

void attend_tile(const Tile& tile, const QueryRows& rows, const RowState& state, const Tile* next) {
  HWY_DYNAMIC_DISPATCH(AttendTile)(tile, rows, state, next);
}

void score_tile(const Tile& tile, const QueryRows& rows, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreTile)(tile, rows, scores);
}

const char* dispatched_isa() { return HWY_DYNAMIC_DISPATCH(TargetIsa)(); }

}  // namespace longdecode::cpu
#endif  // HWY_ONCE
