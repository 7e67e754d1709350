// Whole tiles of bf16 keys and values on AMX, the matrix unit of x86 CPUs: the products inside
// attend_tile, which keeps the softmax and every other tile (partial or masked).
//   S^T [16 tokens x 16 rows] += K [16 x 32 channels] Q^T: the context is the unit's long
//     dimension, and keys go from the cache straight into it. Queries are rearranged once per task.
//   O [rows x 16 channels] += P [rows x 32 tokens] V: the unit wants pairs of tokens, so values are
//     interleaved once per tile. Leaving them as pairs of channels, with each weight paired with a
//     zero, needs twice the products and was no faster (GQA group 4, MLA 16 heads).
// P is split into two bf16 terms, which leaves 2^-18 of it: the error stays that of fp32 scores.
#ifndef LONGDECODE_CPU_TILE_AMX_H_
#define LONGDECODE_CPU_TILE_AMX_H_

#include <cstdint>

#include "cpu/tile_attention.h"
#include "cpu/tile_prefetch.h"
#include "longdecode/attention.h"
#include "longdecode/types.h"

namespace longdecode::cpu {

// From this many query rows per kv head on AMX beats vectors: below, its detours (interleaved
// values, two configurations of the tiles) cost more than the products (GQA 65536 tokens, 2
// threads, of the plain read: group 4 0.73 against 0.88, 8 0.69 and 0.69, 16 0.62 and 0.40).
inline constexpr int64_t kMinAmxRows = 9;

// True when AMX serves desc: bf16 queries over a bf16 cache, enough rows, and both `device` and
// this process have it.
bool amx_serves(const DecodeDesc& desc, const DeviceInfo& device);

// The matrix unit of the calling thread for the query rows of one kv head. Results do not depend on
// where the rows of a tile lie.
class AmxTiles {
 public:
  static constexpr int32_t kBlockRows = 16;

  static int64_t scratch_bytes(int32_t max_rows, int32_t key_dim, int32_t value_dim);

  // scratch: scratch_bytes of 64-byte aligned memory, the thread's own.
  AmxTiles(void* scratch, int32_t num_rows, int32_t key_dim, int32_t value_dim);
  ~AmxTiles();
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // q: key_dim channels of bf16.
  void pack_query(int32_t row, const void* q);

  // The tile of the calls that follow, of kTileCapacity tokens.
  void begin_tile(const Tile& tile);
  // scores[token * kBlockRows + i] = row i of the block of 16 that `begin` lies in . key, unscaled;
  // 0 past the last row. 64-byte aligned.
  void score(int32_t begin, TilePrefetch& prefetch, float* scores);
  // o[i] = o[i] * rescale[i] + sum over tokens of p[token * kBlockRows + i] * value, o being rows
  // of a RowState; p is read up to kBlockRows floats for each token.
  void accumulate(int32_t num_rows, const float* p, const float* rescale, TilePrefetch& prefetch,
                  float* o);

 private:
  struct Keys {  // 16 rows
    const char* rows = nullptr;
    int64_t stride_bytes = 0;
    const char* tail = nullptr;  // the last 16 of an odd number of 16-channel groups, zero-padded
  };
  void configure(int32_t num_rows);
  void take_keys(const Tile& tile);
  bool take_values(int32_t group, uint32_t* tiles, TilePrefetch& prefetch);
  void accumulate_any(int32_t num_rows, const float* p, int32_t group, float* o) const;

  int32_t key_dim_ = 0;
  int32_t value_dim_ = 0;
  int32_t configured_rows_ = 0;
  const Tile* tile_ = nullptr;
  Keys keys_[kTileCapacity / 16];
  uint32_t* q_tiles_ = nullptr;  // [blocks of 16 rows][chunks of 32 channels][16 pairs][16 rows]
  // [groups of 32 channels][2 chunks of 32 tokens][even, odd][16 pairs of tokens][16 channels]
  uint32_t* v_tiles_ = nullptr;
  bool keeps_values_ = false;
  int32_t num_groups_taken_ = 0;
  bool is_finite_[5] = {};      // of four groups each
  char* key_copies_ = nullptr;  // [kTileCapacity][key_dim rounded up to 32] bf16
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_TILE_AMX_H_
