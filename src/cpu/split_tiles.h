// The tiles of one (sequence, kv head, split) of a paged cache, in order.
#ifndef LONGDECODE_CPU_SPLIT_TILES_H_
#define LONGDECODE_CPU_SPLIT_TILES_H_

#include <algorithm>
#include <cstdint>

#include "cpu/paged_rows.h"
#include "cpu/tile_attention.h"
#include "longdecode/types.h"

namespace longdecode::cpu {

// A tile and the row addresses it points to.
struct TileBuffer {
  const void* k_rows[kTileCapacity];
  const void* v_rows[kTileCapacity];
  TokenRange visible[kMaxQueryLen];
  Tile tile;
};

struct SplitTiles {
  PagedRows keys;
  PagedRows values;  // MLA: the keys
  bool is_latent = false;
  QueryWindow window;
  int64_t next = 0;  // first token of the tile that fill makes
  int64_t end = 0;

  // Makes the next tile; it ends where a multiple of kTileCapacity does. False: there is none.
  bool fill(TileBuffer& buffer) {
    if (next >= end) return false;
    const int64_t count = std::min<int64_t>(kTileCapacity - next % kTileCapacity, end - next);
    keys.fill(next, count, buffer.k_rows);
    if (!is_latent) values.fill(next, count, buffer.v_rows);
    for (int64_t t = 0; t < window.query_len; ++t) {
      buffer.visible[t] = window.in_tile(t, next, count);
    }
    buffer.tile = {static_cast<int32_t>(count), buffer.k_rows,
                   is_latent ? buffer.k_rows : buffer.v_rows, buffer.visible};
    next += count;
    return true;
  }
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_SPLIT_TILES_H_
