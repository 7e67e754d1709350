#include "cpu/tile_amx.h"

#include "base/float_convert.h"
#include "cpu/cpu_features.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined operand inside its own intrinsics for an uninitialised variable.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#define LONGDECODE_AMX \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))

namespace longdecode::cpu {
namespace {

constexpr int32_t kTileRows = 16;
constexpr int32_t kTileBytes = 1024;  // 16 rows of 64 bytes
constexpr int32_t kTileDwords = kTileBytes / 4;
constexpr int32_t kChunk = 32;  // bf16 of a tile row: channels of keys, tokens of P
constexpr int32_t kNumChunks = kTileCapacity / kChunk;
constexpr int32_t kNumBlocks = kTileCapacity / kTileRows;
constexpr int32_t kLineBytes = 64;
constexpr int32_t kGroupDwords = 2 * kNumChunks * kTileDwords;  // values of 32 channels
// Groups of 32 channels that are interleaved at a time: 256 bytes of a row in a run, 16 KB in all.
constexpr int32_t kValueGroups = 4;

int32_t num_key_chunks(int32_t key_dim) { return (key_dim + kChunk - 1) / kChunk; }
int64_t q_tiles_bytes(int32_t num_rows, int32_t key_dim) {
  const int64_t blocks = (int64_t{num_rows} + kTileRows - 1) / kTileRows;
  return blocks * num_key_chunks(key_dim) * kTileBytes;
}
// All values where more than one block of rows uses them; else a place that stays in L1.
bool keeps_values(int32_t num_rows) { return num_rows > kTileRows; }
int64_t v_tiles_bytes(int32_t num_rows, int32_t value_dim) {
  const int64_t groups = packed_dim(value_dim) / kChunk;
  return (keeps_values(num_rows) ? groups : std::min<int64_t>(groups, kValueGroups)) *
         kGroupDwords * 4;
}
int64_t key_row_bytes(int32_t key_dim) { return int64_t{num_key_chunks(key_dim)} * kChunk * 2; }

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// How the prefetch of the next tile is spread over the work on a tile, in units of TilePrefetch.
constexpr int32_t kWhileScoring = 384;
constexpr int32_t kWhileTakingValues = 320;
constexpr int32_t kWhileAccumulating = 320;

// to[i * to_stride + j] = from[j * kTileRows + i] for 16 x 16 floats; to is 64-byte aligned.
LONGDECODE_AMX void transpose(const float* from, float* to, int64_t to_stride) {
  for (int column = 0; column < kTileRows; column += 4, to += 4 * to_stride) {
    __m512 t[4];  // lane block b of t[i]: row 4 * b + i
    for (int i = 0; i < 4; ++i) {
      const float* row = from + i * kTileRows + column;
      t[i] = _mm512_castps128_ps512(_mm_loadu_ps(row));
      t[i] = _mm512_insertf32x4(t[i], _mm_loadu_ps(row + 64), 1);
      t[i] = _mm512_insertf32x4(t[i], _mm_loadu_ps(row + 128), 2);
      t[i] = _mm512_insertf32x4(t[i], _mm_loadu_ps(row + 192), 3);
    }
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(t[0], t[1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(t[0], t[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(t[2], t[3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(t[2], t[3]));
    _mm512_store_pd(to, _mm512_unpacklo_pd(low01, low23));
    _mm512_store_pd(to + to_stride, _mm512_unpackhi_pd(low01, low23));
    _mm512_store_pd(to + 2 * to_stride, _mm512_unpacklo_pd(high01, high23));
    _mm512_store_pd(to + 3 * to_stride, _mm512_unpackhi_pd(high01, high23));
  }
}

LONGDECODE_AMX __m512 widen(__m256i bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

// 32 fp32 -> the nearest bf16 and the nearest bf16 of what remains.
LONGDECODE_AMX void split_weights(const float* p, uint16_t* high, uint16_t* low) {
  const __m512 p0 = _mm512_load_ps(p);
  const __m512 p1 = _mm512_load_ps(p + 16);
  const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(p1, p0);
  const __m512 rest0 = _mm512_sub_ps(p0, widen(_mm512_castsi512_si256(rounded)));
  const __m512 rest1 = _mm512_sub_ps(p1, widen(_mm512_extracti64x4_epi64(rounded, 1)));
  _mm512_store_si512(high, rounded);
  _mm512_store_si512(low, (__m512i)_mm512_cvtne2ps_pbh(rest1, rest0));
}

// A function: g++ 12 does not give a destructor its target.
LONGDECODE_AMX void release_unit() { _tile_release(); }

}  // namespace

bool amx_serves(const DecodeDesc& desc, const DeviceInfo& device) {
  static const DeviceInfo self = detect_cpu();  // device may have been filled by hand
  const int64_t rows = int64_t{desc.num_q_heads} / desc.format.num_kv_heads * desc.max_query_len;
  return desc.q_dtype == DType::kBF16 && desc.format.dtype == DType::kBF16 && rows >= kMinAmxRows &&
         device.has_amx_bf16 && self.has_amx_bf16 && self.has_avx512_bf16 &&
         std::string_view(dispatched_isa()) == "avx512";
}

int64_t AmxTiles::scratch_bytes(int32_t max_rows, int32_t key_dim, int32_t value_dim) {
  return q_tiles_bytes(max_rows, key_dim) + v_tiles_bytes(max_rows, value_dim) +
         kTileCapacity * key_row_bytes(key_dim);
}

AmxTiles::AmxTiles(void* scratch, int32_t num_rows, int32_t key_dim, int32_t value_dim)
    : key_dim_(key_dim), value_dim_(value_dim), keeps_values_(keeps_values(num_rows)) {
  char* memory = static_cast<char*>(scratch);
  v_tiles_ = reinterpret_cast<uint32_t*>(memory);
  memory += v_tiles_bytes(num_rows, value_dim);
  key_copies_ = memory;
  memory += kTileCapacity * key_row_bytes(key_dim);
  q_tiles_ = reinterpret_cast<uint32_t*>(memory);
  std::memset(q_tiles_, 0, static_cast<size_t>(q_tiles_bytes(num_rows, key_dim)));
}

AmxTiles::~AmxTiles() { release_unit(); }

void AmxTiles::pack_query(int32_t row, const void* q) {
  uint32_t* to = q_tiles_ + int64_t{row / kTileRows} * num_key_chunks(key_dim_) * kTileDwords +
                 row % kTileRows;
  for (int32_t pair = 0; pair < key_dim_ / 2; ++pair) {
    std::memcpy(to + pair * kTileRows, static_cast<const char*>(q) + 4 * pair, 4);
  }
}

// While scores are made (num_rows 16) every tile is whole: 0 to 3 sums, 4 queries, 5 and 6 keys.
// While values are added up 2 and 3 hold values; 0 and 1, outputs, and 4 to 7, weights, have a row
// for each query row.
LONGDECODE_AMX void AmxTiles::configure(int32_t num_rows) {
  if (num_rows == configured_rows_) return;
  configured_rows_ = num_rows;
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i == 2 || i == 3 ? kTileRows : num_rows);
  }
  // g++ 12 tells the compiler that this reads 8 bytes: the other stores would be dropped.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

void AmxTiles::begin_tile(const Tile& tile) {
  tile_ = &tile;
  num_groups_taken_ = 0;
  take_keys(tile);
}

// Rows at equal distances, as in a page, stay where they are.
LONGDECODE_AMX void AmxTiles::take_keys(const Tile& tile) {
  const int64_t copy_stride = key_row_bytes(key_dim_);
  const bool has_tail = key_dim_ % kChunk != 0;
  const int64_t tail_begin = int64_t{key_dim_ / kChunk} * kChunk * 2;
  for (int32_t block = 0; block < kNumBlocks; ++block) {
    const void* const* rows = tile.k_rows + block * kTileRows;
    char* copy = key_copies_ + block * kTileRows * copy_stride;
    const char* first = static_cast<const char*>(rows[0]);
    const int64_t stride = static_cast<const char*>(rows[1]) - first;
    bool is_strided = true;
    for (int32_t j = 2; j < kTileRows; ++j) is_strided &= rows[j] == first + j * stride;
    keys_[block] = is_strided ? Keys{first, stride, copy + tail_begin}
                              : Keys{copy, copy_stride, copy + tail_begin};
    if (is_strided && !has_tail) continue;
    const int64_t from = is_strided ? tail_begin : 0;
    for (int32_t j = 0; j < kTileRows; ++j) {
      char* to = copy + j * copy_stride;
      std::memcpy(to + from, static_cast<const char*>(rows[j]) + from,
                  static_cast<size_t>(key_dim_ * 2 - from));
      if (has_tail) std::memset(to + key_dim_ * 2, 0, static_cast<size_t>(kChunk));
    }
  }
}

// Interleaves values of kValueGroups groups of 32 channels. False: one of them is not finite.
LONGDECODE_AMX bool AmxTiles::take_values(int32_t group, uint32_t* tiles, TilePrefetch& prefetch) {
  const int32_t begin = group * kChunk;
  const int32_t end = std::min(begin + kValueGroups * kChunk, value_dim_);
  const int32_t prefetch_step = kWhileTakingValues * (end - begin) / (16 * value_dim_);
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i max0 = _mm512_setzero_si512();
  __m512i max1 = _mm512_setzero_si512();
  for (int32_t j = 0; j < kTileCapacity; j += 2) {
    if (j % 4 == 0) prefetch.advance(prefetch_step);
    const auto* row0 = static_cast<const uint16_t*>(tile_->v_rows[j]);
    const auto* row1 = static_cast<const uint16_t*>(tile_->v_rows[j + 1]);
    uint32_t* to = tiles + j / kChunk * 2 * kTileDwords + j % kChunk * 8;
    for (int32_t c = begin; c < end; c += kChunk, to += kGroupDwords) {
      const auto mask = static_cast<__mmask16>(end - c < kChunk ? 0xFF : 0xFFFF);
      const __m512i v0 = _mm512_maskz_loadu_epi32(mask, row0 + c);
      const __m512i v1 = _mm512_maskz_loadu_epi32(mask, row1 + c);
      max0 = _mm512_max_epu16(max0, _mm512_and_si512(v0, magnitude));
      max1 = _mm512_max_epu16(max1, _mm512_and_si512(v1, magnitude));
      // Even and odd channels come apart, each with its two tokens.
      const __m512i even = _mm512_mask_blend_epi16(0xAAAAAAAAu, v0, _mm512_slli_epi32(v1, 16));
      const __m512i odd = _mm512_ternarylogic_epi32(high_half, v1, _mm512_srli_epi32(v0, 16), 0xCA);
      _mm512_store_si512(to, even);
      _mm512_store_si512(to + kTileDwords, odd);
    }
  }
  const __m512i infinity = _mm512_set1_epi16(0x7F80);
  return _mm512_cmpge_epu16_mask(_mm512_max_epu16(max0, max1), infinity) == 0;
}

LONGDECODE_AMX void AmxTiles::score(int32_t begin, TilePrefetch& prefetch, float* scores) {
  configure(kTileRows);
  const int32_t num_chunks = num_key_chunks(key_dim_);
  const int32_t num_direct = key_dim_ / kChunk;
  const uint32_t* q = q_tiles_ + int64_t{begin / kTileRows} * num_chunks * kTileDwords;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
    // The blocks' sums are independent chains, and the queries are loaded once for all of them.
    _tile_loadd(4, q + chunk * kTileDwords, kLineBytes);
    const bool is_tail = chunk == num_direct;
    const auto from = [&](int32_t block) {
      return is_tail ? keys_[block].tail : keys_[block].rows + chunk * kLineBytes;
    };
    const auto stride = [&](int32_t block) {
      return is_tail ? key_row_bytes(key_dim_) : keys_[block].stride_bytes;
    };
    _tile_loadd(5, from(0), stride(0));
    _tile_dpbf16ps(0, 5, 4);
    _tile_loadd(6, from(1), stride(1));
    _tile_dpbf16ps(1, 6, 4);
    prefetch.advance(kWhileScoring / (2 * num_chunks));
    _tile_loadd(5, from(2), stride(2));
    _tile_dpbf16ps(2, 5, 4);
    _tile_loadd(6, from(3), stride(3));
    _tile_dpbf16ps(3, 6, 4);
    prefetch.advance(kWhileScoring / (2 * num_chunks));
  }
  _tile_stored(0, scores, kLineBytes);
  _tile_stored(1, scores + kTileDwords, kLineBytes);
  _tile_stored(2, scores + 2 * kTileDwords, kLineBytes);
  _tile_stored(3, scores + 3 * kTileDwords, kLineBytes);
}

LONGDECODE_AMX void AmxTiles::accumulate(int32_t num_rows, const float* p, const float* rescale,
                                         TilePrefetch& prefetch, float* o) {
  configure(num_rows);
  const int64_t o_stride = packed_dim(value_dim_);
  alignas(64) float p_rows[kTileRows * kTileCapacity];
  alignas(64) uint16_t high[kTileRows * kTileCapacity];
  alignas(64) uint16_t low[kTileRows * kTileCapacity];
  for (int32_t j = 0; j < kTileCapacity; j += kTileRows) {
    transpose(p + j * kTileRows, p_rows + j, kTileCapacity);
  }
  for (int32_t r = 0; r < num_rows; ++r) {
    for (int32_t j = r * kTileCapacity; j < (r + 1) * kTileCapacity; j += kChunk) {
      split_weights(p_rows + j, high + j, low + j);
    }
    if (rescale[r] == 1.0f) continue;
    const __m512 factor = _mm512_set1_ps(rescale[r]);
    for (float* out = o + r * o_stride; out != o + (r + 1) * o_stride; out += 16) {
      _mm512_store_ps(out, _mm512_mul_ps(_mm512_load_ps(out), factor));
    }
  }
  constexpr int64_t kWeightStride = kTileCapacity * 2;
  _tile_loadd(4, high, kWeightStride);
  _tile_loadd(5, low, kWeightStride);
  _tile_loadd(6, high + kChunk, kWeightStride);
  _tile_loadd(7, low + kChunk, kWeightStride);
  const auto num_groups = static_cast<int32_t>(o_stride / kChunk);
  bool is_finite = true;
  for (int32_t group = 0; group < num_groups; ++group) {
    uint32_t* v = v_tiles_ + (keeps_values_ ? group : group % kValueGroups) * kGroupDwords;
    if (group % kValueGroups == 0) {
      bool& known = is_finite_[group / kValueGroups];
      if (group >= num_groups_taken_) {
        known = take_values(group, v, prefetch);
        if (keeps_values_) num_groups_taken_ = group + kValueGroups;
      }
      is_finite = known;
    }
    float* out = o + group * kChunk;
    if (!is_finite) {
      accumulate_any(num_rows, p_rows, group, out);
      continue;
    }
    _tile_loadd(0, out, o_stride * 4);
    _tile_loadd(1, out + 16, o_stride * 4);
    _tile_loadd(2, v, kLineBytes);
    _tile_dpbf16ps(0, 4, 2);
    _tile_dpbf16ps(0, 5, 2);
    _tile_loadd(3, v + kTileDwords, kLineBytes);
    _tile_dpbf16ps(1, 4, 3);
    _tile_dpbf16ps(1, 5, 3);
    prefetch.advance(kWhileAccumulating / (2 * num_groups));
    _tile_loadd(2, v + 2 * kTileDwords, kLineBytes);
    _tile_dpbf16ps(0, 6, 2);
    _tile_dpbf16ps(0, 7, 2);
    _tile_loadd(3, v + 3 * kTileDwords, kLineBytes);
    _tile_dpbf16ps(1, 6, 3);
    _tile_dpbf16ps(1, 7, 3);
    _tile_stored(0, out, o_stride * 4);
    _tile_stored(1, out + 16, o_stride * 4);
    prefetch.advance(kWhileAccumulating / (2 * num_groups));
  }
}

// 0 * infinity in one term of P would make a NaN of an infinity.
void AmxTiles::accumulate_any(int32_t num_rows, const float* p, int32_t group, float* o) const {
  const int32_t num_channels = std::min(kChunk, value_dim_ - group * kChunk);
  for (int32_t j = 0; j < kTileCapacity; ++j) {
    const auto* v = static_cast<const uint16_t*>(tile_->v_rows[j]) + group * kChunk;
    for (int32_t r = 0; r < num_rows; ++r) {
      float* out = o + r * packed_dim(value_dim_);
      for (int32_t c = 0; c < num_channels; ++c) {
        out[c % 2 * 16 + c / 2] += p[r * kTileCapacity + j] * bf16_to_f32(v[c]);
      }
    }
  }
}

}  // namespace longdecode::cpu

#else

namespace longdecode::cpu {

bool amx_serves(const DecodeDesc&, const DeviceInfo&) { return false; }

// Nothing here is called then.
int64_t AmxTiles::scratch_bytes(int32_t, int32_t, int32_t) { return 0; }
AmxTiles::AmxTiles(void*, int32_t, int32_t, int32_t) {}
AmxTiles::~AmxTiles() = default;
void AmxTiles::pack_query(int32_t, const void*) {}
void AmxTiles::begin_tile(const Tile&) {}
void AmxTiles::score(int32_t, TilePrefetch&, float*) {}
void AmxTiles::accumulate(int32_t, const float*, const float*, TilePrefetch&, float*) {}

}  // namespace longdecode::cpu

#endif
