#include "cuda/host/tensor_map.h"

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

}  // namespace

Status encode_paged_rows(const PagedRows& rows, CUtensorMap& map) {
  static const EncodeTiled encode = find_encoder();
  if (encode == nullptr) {
    return make_status(StatusCode::kUnavailable,
                       "the CUDA driver has no cuTensorMapEncodeTiled (12.0 or later is needed)");
  }
  constexpr cuuint64_t kChunkBytes = 128;
  const cuuint64_t shape[4] = {64, static_cast<cuuint64_t>(rows.rows_per_page),
                               static_cast<cuuint64_t>(rows.num_chunks),
                               static_cast<cuuint64_t>(rows.num_pages)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(rows.row_stride_bytes), kChunkBytes,
                                 static_cast<cuuint64_t>(rows.page_stride_bytes)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows.box_rows),
                             static_cast<cuuint32_t>(rows.box_chunks), 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  // L2 promotion to 256 bytes costs 10% of the bandwidth here, 128 bytes nothing.
  const CUresult result =
      encode(&map,
             rows.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             4, rows.base, shape, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return make_status(StatusCode::kInternal,
                       "cuTensorMapEncodeTiled failed with CUresult {} (base {}, row stride {} "
                       "bytes, page stride {} bytes, {} pages)",
                       static_cast<int>(result), rows.base, rows.row_stride_bytes,
                       rows.page_stride_bytes, rows.num_pages);
  }
  return Status();
}

}  // namespace longdecode::cuda
