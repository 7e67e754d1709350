// Tensor maps for the TMA unit. The encoder lives in the driver and is found at run time, so that
// nothing links against libcuda.
#ifndef LONGDECODE_CUDA_HOST_TENSOR_MAP_H_
#define LONGDECODE_CUDA_HOST_TENSOR_MAP_H_

#include <cuda.h>

#include "longdecode/status.h"
#include "longdecode/tensor.h"

namespace longdecode::cuda {

// Rows of 16-bit channels in pages, as {64 channels, rows, chunks of 64 channels, pages}, 128-byte
// swizzle. Loads of rows that do not exist give zeros.
struct PagedRows {
  void* base = nullptr;
  DType dtype = DType::kBF16;
  int64_t num_pages = 0, rows_per_page = 0, num_chunks = 0;
  int64_t row_stride_bytes = 0, page_stride_bytes = 0;
  int32_t box_rows = 0, box_chunks = 0;
};
Status encode_paged_rows(const PagedRows& rows, CUtensorMap& map);

// A pool [pages, heads, tokens, dim] of 16-bit channels as {channels of a chunk, tokens, chunks,
// heads, pages}; boxes of box_tokens tokens with all channels of one head. A chunk is 64 channels
// (128-byte swizzle), or 32 (64-byte swizzle) where 64 does not divide dim.
struct PagedHeads {
  void* base = nullptr;
  DType dtype = DType::kBF16;
  int64_t num_pages = 0, num_heads = 0, page_size = 0, dim = 0;
  int64_t page_stride_bytes = 0, head_stride_bytes = 0, token_stride_bytes = 0;
  int32_t box_tokens = 0;
};
Status encode_paged_heads(const PagedHeads& pool, CUtensorMap& map);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_HOST_TENSOR_MAP_H_
