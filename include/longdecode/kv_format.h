// What one page of a KV cache holds, byte by byte. docs/formats/kv-cache.md explains the why.
#ifndef LONGDECODE_KV_FORMAT_H_
#define LONGDECODE_KV_FORMAT_H_

#include <cstdint>

#include "longdecode/export.h"
#include "longdecode/status.h"
#include "longdecode/types.h"

namespace longdecode {

// kPlain: keys as they are. kTwoPlane: 2-bit code plane + 8-bit residual plane (the FFD format).
enum class KeyEncoding : int32_t { kPlain = 0, kTwoPlane = 1 };

// Tokens per tile: the unit in which FFD keeps or drops work, and the M block of the code plane.
inline constexpr int32_t kTileTokens = 16;
// The code plane stores channels in blocks of this many; a head_dim of 80 is padded to 96.
inline constexpr int32_t kChannelBlock = 32;
// A page is quantised once this many tokens past its end exist, so that taking back up to
// kMaxTruncateTokens tokens never needs an evicted key.
inline constexpr int32_t kQuantizeLag = kMaxTruncateTokens;

struct KvFormat {
  Op op = Op::kGqa;
  KeyEncoding keys = KeyEncoding::kPlain;
  DType dtype = DType::kBF16;  // of plain keys, of unquantised recent keys and of V
  int32_t num_kv_heads = 1;    // 1..1024; 1 for MLA
  int32_t key_dim = 128;       // head_dim for GQA: 64, 80, 96, 128 or 256; 576 for MLA
  int32_t value_dim = 128;     // head_dim for GQA, 512 for MLA (V is a prefix of the key row)
  int32_t page_size = 64;      // tokens; two-plane: 64 or 128, otherwise 1, 16, 32, 64 or 128

  static KvFormat gqa(KeyEncoding keys, DType dtype, int32_t num_kv_heads, int32_t head_dim,
                      int32_t page_size) {
    return KvFormat{Op::kGqa, keys, dtype, num_kv_heads, head_dim, head_dim, page_size};
  }
  static KvFormat mla(DType dtype, int32_t page_size) {
    return KvFormat{Op::kMla, KeyEncoding::kPlain, dtype, 1, kMlaKeyDim, kMlaValueDim, page_size};
  }

  // Channels of the planes: key_dim rounded up to kChannelBlock; the padding has step 0.
  constexpr int32_t padded_dim() const {
    return (key_dim + kChannelBlock - 1) / kChannelBlock * kChannelBlock;
  }

  // --- Two-plane layout: one chunk per (page, kv head), contiguous: codes, steps, zeros. ---
  //
  // A unit is 16 tokens (a tile) x 32 channels (a block), the A operand of one 8-bit integer
  // m16n8k32 matrix instruction; unit u = tile * num_blocks() + block. Four consecutive units share
  // 512 bytes of codes, one per 2-bit field of each byte; a unit of residuals is 512 bytes.
  // steps: bf16 [padded_dim], the 2-bit step d_c >= 0, rounded up. zeros: fp16 [padded_dim], the
  // zero in units of the step, so z_c = d_c * zero and no exponent can overflow.
  constexpr int32_t num_blocks() const { return padded_dim() / kChannelBlock; }
  constexpr int64_t code_bytes() const { return page_size * int64_t{padded_dim()} / 4; }
  constexpr int64_t step_offset_bytes() const { return code_bytes(); }
  constexpr int64_t zero_offset_bytes() const { return code_bytes() + 2 * int64_t{padded_dim()}; }
  constexpr int64_t chunk_bytes() const { return code_bytes() + 4 * int64_t{padded_dim()}; }
  constexpr int64_t residual_tile_bytes() const { return kTileTokens * int64_t{padded_dim()}; }
  constexpr int64_t residual_bytes() const { return page_size * int64_t{padded_dim()}; }

  // Byte of (token in page, channel) within a unit: lane 4 g + t owns 16 bytes, word j, byte b.
  static constexpr int64_t byte_in_unit(int32_t token, int32_t channel) {
    const int32_t row = token % kTileTokens;
    const int32_t column = channel % kChannelBlock;
    const int32_t lane = 4 * (row % 8) + column / 8;
    const int32_t word = row / 8 + 2 * (column % 8 / 4);
    return 16 * lane + 4 * word + column % 4;
  }
  constexpr int64_t unit(int32_t token, int32_t channel) const {
    return int64_t{token / kTileTokens} * num_blocks() + channel / kChannelBlock;
  }
  // Byte offset in the chunk, and shift in that byte, of the 2-bit code of (token, channel).
  constexpr int64_t code_offset_bytes(int32_t token, int32_t channel) const {
    return unit(token, channel) / 4 * 512 + byte_in_unit(token, channel);
  }
  constexpr int32_t code_shift(int32_t token, int32_t channel) const {
    return 2 * static_cast<int32_t>(unit(token, channel) % 4);
  }
  // Byte offset of the residual of (token, channel) in the residual plane of a (page, kv head).
  constexpr int64_t residual_offset_bytes(int32_t token, int32_t channel) const {
    return unit(token, channel) * 512 + byte_in_unit(token, channel);
  }

  // Unquantised keys of a sequence live in a ring of this many tokens, token j in row j mod ring.
  constexpr int32_t recent_ring_tokens() const {
    return page_size + kQuantizeLag + kMaxTruncateTokens;
  }
  // Full pages whose keys are quantised in a sequence of kv_len tokens: a function of the length
  // alone, so a truncated sequence needs no extra state.
  constexpr int64_t num_quantized_pages(int64_t kv_len) const {
    return kv_len <= kQuantizeLag ? 0 : (kv_len - kQuantizeLag) / page_size;
  }

  // Bytes of one token over all kv heads (K and V; two-plane: planes, page constants shared out).
  constexpr double bytes_per_token() const {
    const double value_bytes = op == Op::kMla ? 0.0 : double(value_dim) * dtype_bytes(dtype);
    const double key_bytes = keys == KeyEncoding::kPlain
                                 ? double(key_dim) * dtype_bytes(dtype)
                                 : double(chunk_bytes() + residual_bytes()) / page_size;
    return num_kv_heads * (key_bytes + value_bytes);
  }
};

// Checks every field; the message names the first bad one, its value and what is allowed.
LONGDECODE_API Status validate(const KvFormat& format);

}  // namespace longdecode

#endif  // LONGDECODE_KV_FORMAT_H_
