// A plain streaming read: what the memory gives to a kernel that does nothing else.
#ifndef LONGDECODE_BENCHMARKS_GPU_TIMER_STREAM_READ_H_
#define LONGDECODE_BENCHMARKS_GPU_TIMER_STREAM_READ_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longdecode::gpu_bench {

// Reads the whole 16-byte words of num_bytes once; g_sink: 16 bytes, practically never written.
cudaError_t stream_read(const void* g_from, int64_t num_bytes, void* g_sink, cudaStream_t stream);

// The same by ordinary loads: whatever was in L2 before makes room, kernels' code too. Lines that
// are to be given up first would make room for each other and leave the rest where it is.
cudaError_t fill_l2(const void* g_from, int64_t num_bytes, void* g_sink, cudaStream_t stream);

}  // namespace longdecode::gpu_bench

#endif  // LONGDECODE_BENCHMARKS_GPU_TIMER_STREAM_READ_H_
