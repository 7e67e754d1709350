// What the kernels on rows of the residual stream get by value. Device memory; the innermost
// dimension is a multiple of 8.
#ifndef LONGDECODE_CUDA_KERNELS_ROWS_PARAMS_H_
#define LONGDECODE_CUDA_KERNELS_ROWS_PARAMS_H_

#include <cstdint>

namespace longdecode::cuda::rows {

struct EmbedParams {
  const int32_t* g_ids;         // [num_rows]
  const uint16_t* g_embedding;  // bf16 [vocab_size, dim]
  float* g_x;                   // [num_rows, dim]
  int64_t num_rows;
  int32_t vocab_size, dim;
};

struct RmsNormParams {
  const float* g_x;       // [num_rows, dim]
  const float* g_weight;  // [dim]
  float eps;
  uint16_t* g_out;  // bf16 [num_rows, dim]
  int64_t num_rows;
  int32_t dim;
};

// Blocks of 8 columns of gate, then the same of up.
struct SiluUpParams {
  const uint16_t* g_gate_up;  // bf16 [num_rows, 2 * dim]
  uint16_t* g_out;            // bf16 [num_rows, dim]
  int64_t num_rows;
  int32_t dim;
};

// y = bias in every row.
struct FillRowsParams {
  const float* g_bias;  // [dim]
  float* g_y;           // [num_rows, dim]
  int64_t num_rows;
  int32_t dim;
};

}  // namespace longdecode::cuda::rows

#endif  // LONGDECODE_CUDA_KERNELS_ROWS_PARAMS_H_
