// Values made on the device.
#ifndef LONGDECODE_RUNNER_GPU_FILL_H_
#define LONGDECODE_RUNNER_GPU_FILL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longdecode::runner {

// data[i] = a normal number of deviation `size`, in bf16, a function of (seed, i). On the default
// stream.
cudaError_t fill_normal_bf16(uint16_t* data, int64_t count, float size, uint64_t seed);
cudaError_t fill_f32(float* data, int64_t count, float value);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_FILL_H_
