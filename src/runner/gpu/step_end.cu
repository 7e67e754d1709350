#include "runner/gpu/step_end.h"

namespace longdecode::runner {
namespace {

constexpr int kThreads = 256;

// One block: sums in a fixed order, so that repeated runs report the same.
__global__ void __launch_bounds__(kThreads) end_step_kernel(const StepEndArgs a) {
  __shared__ double s_kept[kThreads];
  __shared__ double s_bytes[kThreads];
  if (a.tokens_attended != nullptr) {
    const int per_layer = a.batch * a.num_kv_heads;
    double kept = 0.0, bytes = 0.0;
    for (int i = threadIdx.x; i < a.num_layers * per_layer; i += kThreads) {
      const int layer = i / per_layer, in_layer = i - layer * per_layer;
      const int64_t at = int64_t{layer} * a.max_batch * a.num_kv_heads + in_layer;
      kept += static_cast<double>(a.tokens_attended[at]) / a.kv_lens[in_layer / a.num_kv_heads];
      bytes += static_cast<double>(a.bytes_read[at]);
    }
    s_kept[threadIdx.x] = kept;
    s_bytes[threadIdx.x] = bytes;
    __syncthreads();
    for (int width = kThreads / 2; width > 0; width /= 2) {
      if (threadIdx.x < width) {
        s_kept[threadIdx.x] += s_kept[threadIdx.x + width];
        s_bytes[threadIdx.x] += s_bytes[threadIdx.x + width];
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      a.sums[0] += s_kept[0] / (int64_t{a.num_layers} * a.num_kv_heads);
      a.sums[1] += s_bytes[0];
      a.sums[2] += a.batch;
    }
  }
  if (threadIdx.x < a.batch) ++a.kv_lens[threadIdx.x];
}

}  // namespace

cudaError_t end_step(const StepEndArgs& args, cudaStream_t stream) {
  end_step_kernel<<<1, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace longdecode::runner
