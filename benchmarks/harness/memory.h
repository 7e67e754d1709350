// Memory that this process may still take.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_MEMORY_H_
#define LONGDECODE_BENCHMARKS_HARNESS_MEMORY_H_

#include <cstdint>

namespace longdecode::bench {

// The least of what the kernel says is available and what is left of a cgroup's limit. -1: unknown.
int64_t available_memory_bytes();

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_MEMORY_H_
