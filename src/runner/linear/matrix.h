// Weight matrices as they lie in a GGUF file, and the block layouts that ggml publishes
// (ggml-common.h): 16-bit scales are fp16, everything is little-endian and unaligned.
#ifndef LONGDECODE_RUNNER_LINEAR_MATRIX_H_
#define LONGDECODE_RUNNER_LINEAR_MATRIX_H_

#include <cstdint>
#include <cstring>

#include "runner/gguf/ggml_type.h"

namespace longdecode::runner {

inline constexpr int64_t kBlockWeights = 32;
inline constexpr int64_t kSuperBlockWeights = 256;

struct BlockQ4_0 {  // w_i = d * (q_i - 8)
  uint16_t d;
  uint8_t q[16];  // weight i in the low nibble of byte i, weight i + 16 in the high one
};
static_assert(sizeof(BlockQ4_0) == 18);

struct BlockQ4_1 {  // w_i = d * q_i + m
  uint16_t d;
  uint16_t m;
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

struct BlockQ8_0 {  // w_i = d * q_i
  uint16_t d;
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

// 8 groups of 32 weights: w_i = d * scale[g] * q_i - dmin * min[g], g = i / 32, q_i of 4 bits.
// Weight 64 c + l (l < 32) is the low nibble of q[32 c + l], weight 64 c + 32 + l the high one.
// scale and min have 6 bits: of group g < 4 in the low bits of packed[g] and packed[g + 4]; of
// group g >= 4 the low 4 bits are the nibbles of packed[g + 4], the high 2 bits of the scale are
// those of packed[g - 4], of the min those of packed[g].
struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t packed[12];
  uint8_t q[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

// As Q4_K with 5 bits: bit 4 of weight 32 g + l is bit g of qh[l].
struct BlockQ5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t packed[12];
  uint8_t qh[32];
  uint8_t q[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

struct GroupScales {
  uint64_t scales;  // byte g: of group g
  uint64_t mins;
};

// Unpacks the 12 bytes of a Q4_K or Q5_K block.
inline GroupScales unpack_group_scales(const uint8_t* packed) {
  uint32_t words[3];
  std::memcpy(words, packed, sizeof(words));
  const uint64_t scales_low = words[0] & 0x3f3f3f3f;
  const uint64_t mins_low = words[1] & 0x3f3f3f3f;
  const uint64_t scales_high = (words[2] & 0x0f0f0f0f) | (words[0] >> 2 & 0x30303030);
  const uint64_t mins_high = (words[2] >> 4 & 0x0f0f0f0f) | (words[1] >> 2 & 0x30303030);
  return {scales_low | scales_high << 32, mins_low | mins_high << 32};
}

// 16 groups of 16 weights: w_i = d * scale[i / 16] * (q_i - 32). In each half of 128 weights,
// weight 32 k + l (k < 4, l < 32) has its low 4 bits in ql[32 (k % 2) + l], nibble k / 2, and its
// high 2 bits in qh[l] at bit 2 k.
struct BlockQ6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scale[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ6_K) == 210);

// Row-major [num_rows, num_cols]; y = W x has num_rows outputs. num_cols is a multiple of the
// type's block. A view.
struct Matrix {
  GgmlType type = GgmlType::kF32;
  int64_t num_rows = 0;
  int64_t num_cols = 0;
  const uint8_t* data = nullptr;

  int64_t row_bytes() const {
    const GgmlTypeInfo& info = ggml_type_info(type);
    return num_cols / info.block_weights * info.block_bytes;
  }
  const uint8_t* row(int64_t index) const { return data + index * row_bytes(); }
  bool quantized() const { return ggml_type_info(type).block_weights > 1; }
};

// out[num_cols] = row `row_idx` in fp32.
void dequantize_row(const Matrix& matrix, int64_t row_idx, float* out);

// to[i] = bf16(from[i]), round to nearest even.
void convert_to_bf16(const float* from, int64_t count, uint16_t* to);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_MATRIX_H_
