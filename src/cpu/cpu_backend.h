// The CPU backend: SIMD kernels behind run-time dispatch, OpenMP threads.
#ifndef LONGDECODE_CPU_CPU_BACKEND_H_
#define LONGDECODE_CPU_CPU_BACKEND_H_

#include "base/backend.h"

namespace longdecode::cpu {

const Backend& backend();

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_CPU_BACKEND_H_
