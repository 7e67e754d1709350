#include "cuda/host/tensor_map.h"

#include <fmt/ranges.h>

#include <span>

#include "cuda/host/status.h"

namespace longdecode::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeTiled>(function);
}

// shape and box: rank entries; strides: rank - 1 entries, of dimensions 1 ....
Status encode_tiled(void* base, DType dtype, std::span<const cuuint64_t> shape,
                    std::span<const cuuint64_t> strides, std::span<const cuuint32_t> box,
                    CUtensorMapSwizzle swizzle, CUtensorMap& map) {
  static const EncodeTiled encode = find_encoder();
  if (encode == nullptr) {
    return make_status(StatusCode::kUnavailable,
                       "the CUDA driver has no cuTensorMapEncodeTiled (12.0 or later is needed)");
  }
  constexpr cuuint32_t kElementStrides[5] = {1, 1, 1, 1, 1};
  // L2 promotion to 256 bytes costs 10% of the bandwidth here, 128 bytes nothing.
  const CUresult result = encode(
      &map,
      dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      static_cast<cuuint32_t>(shape.size()), base, shape.data(), strides.data(), box.data(),
      kElementStrides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return make_status(StatusCode::kInternal,
                       "cuTensorMapEncodeTiled failed with CUresult {} (base {}, shape {}, strides "
                       "{} bytes)",
                       static_cast<int>(result), base, fmt::join(shape, " x "),
                       fmt::join(strides, ", "));
  }
  return Status();
}

}  // namespace

Status encode_paged_rows(const PagedRows& rows, CUtensorMap& map) {
  constexpr cuuint64_t kChunkBytes = 128;
  const cuuint64_t shape[] = {64, static_cast<cuuint64_t>(rows.rows_per_page),
                              static_cast<cuuint64_t>(rows.num_chunks),
                              static_cast<cuuint64_t>(rows.num_pages)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(rows.row_stride_bytes), kChunkBytes,
                                static_cast<cuuint64_t>(rows.page_stride_bytes)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows.box_rows),
                            static_cast<cuuint32_t>(rows.box_chunks), 1};
  return encode_tiled(rows.base, rows.dtype, shape, strides, box, CU_TENSOR_MAP_SWIZZLE_128B, map);
}

Status encode_paged_heads(const PagedHeads& pool, CUtensorMap& map) {
  const cuuint32_t chunk_dims = pool.dim % 64 == 0 ? 64 : 32;
  const auto num_chunks = static_cast<cuuint32_t>(pool.dim / chunk_dims);
  const cuuint64_t shape[] = {chunk_dims, static_cast<cuuint64_t>(pool.page_size), num_chunks,
                              static_cast<cuuint64_t>(pool.num_heads),
                              static_cast<cuuint64_t>(pool.num_pages)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(pool.token_stride_bytes), 2 * chunk_dims,
                                static_cast<cuuint64_t>(pool.head_stride_bytes),
                                static_cast<cuuint64_t>(pool.page_stride_bytes)};
  const cuuint32_t box[] = {chunk_dims, static_cast<cuuint32_t>(pool.box_tokens), num_chunks, 1, 1};
  return encode_tiled(pool.base, pool.dtype, shape, strides, box,
                      chunk_dims == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                      map);
}

}  // namespace longdecode::cuda
