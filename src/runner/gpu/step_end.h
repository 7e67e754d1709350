// What ends a decode step on the device.
#ifndef LONGDECODE_RUNNER_GPU_STEP_END_H_
#define LONGDECODE_RUNNER_GPU_STEP_END_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longdecode::runner {

struct StepEndArgs {
  int32_t* kv_lens = nullptr;  // [batch], each incremented
  int32_t batch = 0;
  // What the layers reported, [num_layers, max_batch, num_kv_heads], or nullptr.
  const int64_t* tokens_attended = nullptr;
  const int64_t* bytes_read = nullptr;
  int32_t num_layers = 0;
  int32_t max_batch = 0;
  int32_t num_kv_heads = 0;
  double* sums = nullptr;  // [3]: sums over the batch of attended / kv_len (the mean of layers and
                           // heads), bytes and 1, added
};

cudaError_t end_step(const StepEndArgs& args, cudaStream_t stream);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_STEP_END_H_
