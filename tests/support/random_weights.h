// Random weights in every GGUF block format, and their values by a scalar decoder written from
// ggml's description of the formats, apart from the one under test.
#ifndef LONGDECODE_TESTS_SUPPORT_RANDOM_WEIGHTS_H_
#define LONGDECODE_TESTS_SUPPORT_RANDOM_WEIGHTS_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/float_convert.h"
#include "runner/linear/matrix.h"

namespace longdecode::tests {

inline constexpr runner::GgmlType kAllTypes[] = {
    runner::GgmlType::kF32,  runner::GgmlType::kF16,  runner::GgmlType::kBF16,
    runner::GgmlType::kQ4_0, runner::GgmlType::kQ4_1, runner::GgmlType::kQ8_0,
    runner::GgmlType::kQ4_K, runner::GgmlType::kQ5_K, runner::GgmlType::kQ6_K};

inline void put_half(uint8_t* to, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(to, &bits, 2);
}

// num_weights weights of about `size`, the bytes as a file holds them.
inline std::vector<uint8_t> random_weights(runner::GgmlType type, int64_t num_weights, float size,
                                           std::mt19937* random) {
  using runner::GgmlType;
  const runner::GgmlTypeInfo& info = runner::ggml_type_info(type);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<uint8_t> bytes(
      static_cast<size_t>(num_weights / info.block_weights * info.block_bytes));
  if (info.block_weights == 1) {
    const DType dtype = type == GgmlType::kF32   ? DType::kF32
                        : type == GgmlType::kF16 ? DType::kF16
                                                 : DType::kBF16;
    for (int64_t i = 0; i < num_weights; ++i)
      store_element(bytes.data(), dtype, i, normal(*random));
    return bytes;
  }
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((*random)());
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
    uint8_t* block = bytes.data() + at;
    const float scale = size * uniform(*random);
    switch (type) {
      case GgmlType::kQ4_0:
        put_half(block, -scale / 4);
        break;
      case GgmlType::kQ4_1:
        put_half(block, scale / 4);
        put_half(block + 2, -2 * scale);
        break;
      case GgmlType::kQ8_0:
        put_half(block, scale / 64);
        break;
      case GgmlType::kQ4_K:  // scales and mins reach 63; q reaches 15
      case GgmlType::kQ5_K:  // q reaches 31
        put_half(block, scale / (type == GgmlType::kQ4_K ? 250 : 500));
        put_half(block + 2, scale / 33);  // the mean is near 0
        break;
      default:  // Q6_K: scales reach 127, q reaches 32
        put_half(block + 208, scale / 1000);
    }
  }
  return bytes;
}

// Copies what scales each block (not the Q6_K groups' own scales) between weights of one type.
inline void copy_block_scales(runner::GgmlType type, const std::vector<uint8_t>& from,
                              std::vector<uint8_t>* to) {
  const auto block_bytes = static_cast<size_t>(runner::ggml_type_info(type).block_bytes);
  const size_t begin = type == runner::GgmlType::kQ6_K ? 208 : 0;
  const bool has_min = type == runner::GgmlType::kQ4_1 || type == runner::GgmlType::kQ4_K ||
                       type == runner::GgmlType::kQ5_K;
  const size_t size = has_min ? 4 : 2;
  for (size_t at = begin; at < to->size(); at += block_bytes) {
    std::memcpy(to->data() + at, from.data() + at, size);
  }
}

inline double half_at(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return double(f16_to_f32(bits));
}

inline double q6k_weight(const uint8_t* block, int64_t i) {
  const int64_t half = i / 128;
  const int64_t j = i % 128;
  const int64_t quarter = j / 32;
  const int64_t l = j % 32;
  const uint8_t ql = block[64 * half + 32 * (quarter & 1) + l];
  const int low = quarter < 2 ? ql & 15 : ql >> 4;
  const int high = block[128 + 32 * half + l] >> (2 * quarter) & 3;
  const auto scale = static_cast<int8_t>(block[192 + i / 16]);
  return half_at(block + 208) * scale * ((low | high << 4) - 32);
}

// Q4_K and Q5_K.
inline double k_weight(runner::GgmlType type, const uint8_t* block, int64_t i) {
  const bool five = type == runner::GgmlType::kQ5_K;
  const uint8_t* packed = block + 4;
  const uint8_t* q = block + (five ? 48 : 16);
  const int64_t g = i / 32;
  int scale = packed[g] & 63;
  int min = packed[g + 4] & 63;
  if (g >= 4) {
    scale = (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
    min = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
  }
  const uint8_t byte = q[i / 64 * 32 + i % 32];
  int value = g % 2 == 0 ? byte & 15 : byte >> 4;
  if (five) value |= (block[16 + i % 32] >> g & 1) << 4;
  return half_at(block) * scale * value - half_at(block + 2) * min;
}

inline double weight_at(runner::GgmlType type, const uint8_t* row, int64_t i) {
  using runner::GgmlType;
  const runner::GgmlTypeInfo& info = runner::ggml_type_info(type);
  const uint8_t* block = row + i / info.block_weights * info.block_bytes;
  const int64_t j = i % info.block_weights;
  const auto nibble = [j](const uint8_t* q) { return j < 16 ? q[j] & 15 : q[j - 16] >> 4; };
  switch (type) {
    case GgmlType::kF32:
      return double(load_element(row, DType::kF32, i));
    case GgmlType::kF16:
      return double(load_element(row, DType::kF16, i));
    case GgmlType::kBF16:
      return double(load_element(row, DType::kBF16, i));
    case GgmlType::kQ4_0:
      return half_at(block) * (nibble(block + 2) - 8);
    case GgmlType::kQ4_1:
      return half_at(block) * nibble(block + 4) + half_at(block + 2);
    case GgmlType::kQ8_0:
      return half_at(block) * static_cast<int8_t>(block[2 + j]);
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K:
      return k_weight(type, block, j);
    case GgmlType::kQ6_K:
      return q6k_weight(block, j);
  }
  return 0.0;
}

}  // namespace longdecode::tests

#endif  // LONGDECODE_TESTS_SUPPORT_RANDOM_WEIGHTS_H_
