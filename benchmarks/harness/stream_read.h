// A plain streaming read: what the memory gives to code that does nothing else.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_STREAM_READ_H_
#define LONGDECODE_BENCHMARKS_HARNESS_STREAM_READ_H_

#include <cstdint>

namespace longdecode::bench {

// Reads `num_bytes` from 64-byte aligned memory with the widest loads of this CPU, in contiguous
// parts of 1 MiB. Returns the xor of all 8-byte words of the whole 256-byte blocks.
uint64_t stream_read(const void* memory, int64_t num_bytes, int32_t num_threads);

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_STREAM_READ_H_
