#include "cuda/kernels/merge_partials/kernel.h"

#include <cmath>

namespace longdecode::cuda {
namespace {

// A CTA merges one row.
__global__ void merge_kernel(MergeArgs args) {
  for (int64_t row = blockIdx.x; row < args.num_rows; row += gridDim.x) {
    float row_max = -INFINITY;
    for (int32_t p = 0; p < args.num_partials; ++p) {
      row_max = fmaxf(row_max, args.partial_lse[p * args.num_rows + row]);
    }
    float sum = 0.0f;
    for (int32_t p = 0; p < args.num_partials; ++p) {
      const float partial = args.partial_lse[p * args.num_rows + row];
      if (partial != -INFINITY) sum += expf(partial - row_max);
    }
    const float lse = sum == 0.0f ? -INFINITY : row_max + logf(sum);
    if (threadIdx.x == 0 && args.lse != nullptr) args.lse[row] = lse;
    for (int64_t d = threadIdx.x; d < args.dim; d += blockDim.x) {
      float value = 0.0f;
      for (int32_t p = 0; p < args.num_partials; ++p) {
        const float partial = args.partial_lse[p * args.num_rows + row];
        if (partial == -INFINITY) continue;  // its o is not read
        value = fmaf(expf(partial - lse), args.partial_o[(p * args.num_rows + row) * args.dim + d],
                     value);
      }
      args.o[row * args.dim + d] = value;
    }
  }
}

}  // namespace

cudaError_t launch_merge_partials(const MergeArgs& args, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(args.num_rows < 65536 ? args.num_rows : 65536);
  merge_kernel<<<grid, 128, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace longdecode::cuda
