// The primitives every CPU attention kernel is built from: query rows against a tile of at most
// kTileCapacity tokens, with a running softmax (Milakov & Gimelshein 2018). The context is the
// long dimension: one call reads each key and value row of the tile once from memory, whatever the
// number of query rows. Vectorised with run-time dispatch; callers are plain C++.
//
//   pack_query(...)                  once per task: typed rows -> fp32 in the kernel's order
//   clear(state, ...)
//   attend_tile(tile, rows, next)    for every tile
//   finish_row(...)                  once per row: merges the states of all splits, writes o, lse
//
// The bits of a row depend on its own query, its own visible tokens and how they were cut into
// tiles and states; never on the other rows of the call.
#ifndef LONGDECODE_CPU_TILE_ATTENTION_H_
#define LONGDECODE_CPU_TILE_ATTENTION_H_

#include <cstdint>

#include "longdecode/types.h"

namespace longdecode::cpu {

class AmxTiles;
class TilePrefetch;

inline constexpr int32_t kTileCapacity = 64;   // tokens per attend_tile call
inline constexpr int32_t kMaxPackedDim = 576;  // of keys and of values

// Channels of a packed fp32 row: dim rounded up to two of the widest vectors, so that every row
// starts on a cache line; the padding of a packed query is 0. The order of the channels in a
// packed row is the kernel's own: bf16 rows are read as pairs (even and odd channels come apart),
// so a packed query belongs to one key dtype and a state to one value dtype.
constexpr int64_t packed_dim(int32_t dim) { return (int64_t{dim} + 31) / 32 * 32; }

// Tokens [begin, end) of a tile, as indices into its rows.
struct TokenRange {
  int32_t begin = 0;
  int32_t end = 0;
};

struct Tile {
  int32_t num_tokens = 0;               // 1..kTileCapacity
  const void* const* k_rows = nullptr;  // [num_tokens] rows of key_dim channels, 16-byte aligned
  const void* const* v_rows = nullptr;  // [num_tokens] rows of value_dim channels
  const TokenRange* visible = nullptr;  // [num_rows / rows_per_query], or nullptr: all tokens
  // Or instead of k_rows: the keys as transpose_rows makes them. Scores then need no sums across
  // lanes, which pays for the transposition from about 20 query rows on.
  const float* k_columns = nullptr;
  // Or instead of keys: unscaled scores, [row * kTileCapacity + token].
  const float* scores = nullptr;
};

// Running softmax of num_rows rows; nothing seen yet: m = -infinity, l = 0, o = 0.
struct RowState {
  float* m = nullptr;  // [num_rows] largest score
  float* l = nullptr;  // [num_rows] sum of exp(s - m)
  float* o = nullptr;  // [num_rows][packed_dim(value_dim)] sum of exp(s - m) v, unnormalised
};
// A state lives in row_state_floats fp32 of 64-byte aligned memory.
int64_t row_state_floats(int32_t num_rows, int32_t value_dim);
RowState row_state_at(float* memory, int32_t num_rows);
void clear(const RowState& state, int32_t num_rows, int32_t value_dim);

// The query rows of one kv head, query-token major: row = query_idx * rows_per_query + head.
struct QueryRows {
  int32_t num_rows = 0;
  int32_t rows_per_query = 1;  // rows that see the same tokens: the heads of the group
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  DType key_dtype = DType::kF32;
  DType value_dtype = DType::kF32;
  float softmax_scale = 1.0f;
  float soft_cap = 0.0f;     // 0: off
  const float* q = nullptr;  // [num_rows][packed_dim(key_dim)], packed for key_dtype, unscaled
  AmxTiles* amx = nullptr;   // the same queries for the matrix unit, or nullptr
};

// One query row of q_dtype -> packed[packed_dim(key_dim)].
void pack_query(const void* q, DType q_dtype, DType key_dtype, int32_t key_dim, float* packed);

// One row of dtype -> out[0, dim) fp32, in channel order (what packing for kF32 means).
void convert_row(const void* row, DType dtype, int32_t dim, float* out);

// fp32 rows of dim channels -> columns[channel * kTileCapacity + row]. columns is 64-byte aligned,
// dim * kTileCapacity floats; those of rows past num_rows (up to kTileCapacity) are undefined.
void transpose_rows(const float* rows, int64_t stride, int32_t num_rows, int32_t dim,
                    float* columns);

// Attends the tile. next (or nullptr) is the tile that will follow: its rows are prefetched.
// Rows outside `visible` are not read for a query token, so NaN there cannot reach it.
void attend_tile(const Tile& tile, const QueryRows& rows, const RowState& state, const Tile* next);
// The same with a prefetch that may have begun; all of it has been asked for in the end.
void attend_tile(const Tile& tile, const QueryRows& rows, const RowState& state,
                 TilePrefetch& prefetch);

// Scores alone, scaled and capped: scores[row * kTileCapacity + token], -infinity where a row does
// not see the token; entries past num_tokens are undefined. v_rows is unused. 64-byte aligned.
void score_tile(const Tile& tile, const QueryRows& rows, float* scores);

// Where a finished row goes.
struct RowOutput {
  void* o = nullptr;  // value_dim elements of dtype
  DType dtype = DType::kF32;
  float* lse = nullptr;  // natural log, or nullptr
};
struct StateList {
  float* states = nullptr;  // the first of num_states states of num_rows rows each
  int64_t stride = 0;       // floats from one state to the next
  int32_t num_states = 0;
  int32_t num_rows = 0;
  int32_t value_dim = 0;
  DType value_dtype = DType::kF32;
};
// Merges row `row` of all states in order, adds sink_logit (or nullptr) to the denominator once and
// writes o = sum / l and lse = m + ln l. Nothing visible: o = 0, lse = -infinity.
void finish_row(const StateList& list, int32_t row, const float* sink_logit,
                const RowOutput& output);
// The output of a row that attends nothing (padding, empty sequence).
void write_empty_row(int32_t value_dim, const RowOutput& output);

// The instruction set that the run-time dispatch picks here: "avx512", "avx2", "neon", ...
const char* dispatched_isa();

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_TILE_ATTENTION_H_
