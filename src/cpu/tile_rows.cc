// Rows on their way into and out of attend_tile: packing queries, converting and transposing keys,
// merging states into outputs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_convert.h"
#include "cpu/tile_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as Highway asks.
#include "cpu/tile_kernels-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longdecode::cpu {
namespace HWY_NAMESPACE {
namespace {

void TransposeRows(const float* rows, int64_t stride, int32_t num_rows, int32_t dim,
                   float* columns) {
  for (int32_t j = 0; j < num_rows; j += 4) {
    const float* from[4];
    for (int32_t i = 0; i < 4; ++i) from[i] = rows + std::min(j + i, num_rows - 1) * stride;
    for (size_t c = 0; c < static_cast<size_t>(dim); c += kLanes) {
      transpose_block(from, c, columns + c * kTileCapacity + j, kTileCapacity);
    }
  }
}

void ConvertRow(const void* row, DType dtype, int32_t dim, float* out) {
  const F32 d;
  const hn::Rebind<hwy::bfloat16_t, F32> dbf16;
  const auto* bf16 = static_cast<const hwy::bfloat16_t*>(row);
  const auto count = static_cast<size_t>(dim);  // a multiple of 16
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, row, count * sizeof(float));
      return;
    case DType::kF16:
      for (size_t c = 0; c < count; c += kLanes) hn::StoreU(SourceF16::promote(row, c), d, out + c);
      return;
    case DType::kBF16:
      for (size_t c = 0; c < count; c += kLanes) {
        hn::StoreU(hn::PromoteTo(d, hn::LoadU(dbf16, bf16 + c)), d, out + c);
      }
      return;
  }
}

// Index in a packed row of `channel` of a row of dtype.
size_t packed_index(DType dtype, size_t channel) {
  if (dtype != DType::kBF16) return channel;
  const size_t in_pair = channel % kPair;
  return channel - in_pair + in_pair / 2 + (in_pair % 2) * kLanes;
}

void pack_bf16(const void* q, size_t dim, float* packed) {
  const F32 d;
  VecF32 even;
  VecF32 odd;
  for (size_t c = 0; c < dim; c += kPair) {
    if (kHasTail && dim - c < kPair) {
      SourceBf16::load_tail(q, c, even, odd);
    } else {
      SourceBf16::load(q, c, even, odd);
    }
    hn::Store(even, d, packed + c);
    hn::Store(odd, d, packed + c + kLanes);
  }
}

void PackQuery(const void* q, DType q_dtype, DType key_dtype, int32_t key_dim, float* packed) {
  std::fill(packed + key_dim, packed + packed_dim(key_dim), 0.0f);
  if (key_dtype != DType::kBF16) return ConvertRow(q, q_dtype, key_dim, packed);
  std::fill(packed, packed + packed_dim(key_dim), 0.0f);
  if (q_dtype == DType::kBF16) return pack_bf16(q, static_cast<size_t>(key_dim), packed);
  for (int32_t c = 0; c < key_dim; ++c) {
    packed[packed_index(key_dtype, static_cast<size_t>(c))] = load_element(q, q_dtype, c);
  }
}

void FinishRow(const StateList& list, int32_t row, const float* sink_logit,
               const RowOutput& output) {
  const F32 d;
  const float kEmpty = -std::numeric_limits<float>::infinity();
  const auto state = [&](int32_t i) {
    return row_state_at(list.states + i * list.stride, list.num_rows);
  };
  float max = kEmpty;
  for (int32_t i = 0; i < list.num_states; ++i) max = std::max(max, state(i).m[row]);
  const float base = sink_logit != nullptr ? std::max(max, *sink_logit) : max;
  const auto dim = static_cast<size_t>(packed_dim(list.value_dim));
  alignas(64) float merged[kMaxPackedDim] = {};
  float sum = 0.0f;
  for (int32_t i = 0; i < list.num_states; ++i) {
    const RowState part = state(i);
    if (part.l[row] == 0.0f) continue;
    const float weight = std::exp(part.m[row] - base);
    sum += weight * part.l[row];
    const float* o = part.o + row * static_cast<int64_t>(dim);
    const VecF32 factor = hn::Set(d, weight);
    for (size_t c = 0; c < dim; c += kLanes) {
      hn::Store(hn::MulAdd(factor, hn::Load(d, o + c), hn::Load(d, merged + c)), d, merged + c);
    }
  }
  if (sum == 0.0f && max == kEmpty) return write_empty_row(list.value_dim, output);
  if (sink_logit != nullptr) sum += std::exp(*sink_logit - base);
  const VecF32 factor = hn::Set(d, 1.0f / sum);
  for (size_t c = 0; c < dim; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, merged + c), factor), d, merged + c);
  }
  if (list.value_dtype != DType::kBF16 && output.dtype == DType::kF32) {
    std::memcpy(output.o, merged, static_cast<size_t>(list.value_dim) * sizeof(float));
  } else {
    for (int32_t c = 0; c < list.value_dim; ++c) {
      store_element(output.o, output.dtype, c,
                    merged[packed_index(list.value_dtype, static_cast<size_t>(c))]);
    }
  }
  if (output.lse != nullptr) *output.lse = base + std::log(sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longdecode::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longdecode::cpu {
namespace {

int64_t padded_rows(int32_t num_rows) { return (int64_t{num_rows} + 15) / 16 * 16; }

}  // namespace

HWY_EXPORT(PackQuery);
HWY_EXPORT(ConvertRow);
HWY_EXPORT(TransposeRows);
HWY_EXPORT(FinishRow);

int64_t row_state_floats(int32_t num_rows, int32_t value_dim) {
  return 2 * padded_rows(num_rows) + num_rows * packed_dim(value_dim);
}

RowState row_state_at(float* memory, int32_t num_rows) {
  return {memory, memory + padded_rows(num_rows), memory + 2 * padded_rows(num_rows)};
}

void clear(const RowState& state, int32_t num_rows, int32_t value_dim) {
  std::fill_n(state.m, num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.l, num_rows, 0.0f);
  std::fill_n(state.o, num_rows * packed_dim(value_dim), 0.0f);
}

void pack_query(const void* q, DType q_dtype, DType key_dtype, int32_t key_dim, float* packed) {
  HWY_DYNAMIC_DISPATCH(PackQuery)(q, q_dtype, key_dtype, key_dim, packed);
}

void convert_row(const void* row, DType dtype, int32_t dim, float* out) {
  HWY_DYNAMIC_DISPATCH(ConvertRow)(row, dtype, dim, out);
}

void transpose_rows(const float* rows, int64_t stride, int32_t num_rows, int32_t dim,
                    float* columns) {
  HWY_DYNAMIC_DISPATCH(TransposeRows)(rows, stride, num_rows, dim, columns);
}

void finish_row(const StateList& list, int32_t row, const float* sink_logit,
                const RowOutput& output) {
  HWY_DYNAMIC_DISPATCH(FinishRow)(list, row, sink_logit, output);
}

void write_empty_row(int32_t value_dim, const RowOutput& output) {
  std::memset(output.o, 0, static_cast<size_t>(value_dim * dtype_bytes(output.dtype)));
  if (output.lse != nullptr) *output.lse = -std::numeric_limits<float>::infinity();
}

}  // namespace longdecode::cpu
#endif  // HWY_ONCE
