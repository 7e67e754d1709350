// The CUDA backend: ahead-of-time compiled kernels; the driver is looked for at run time.
#ifndef LONGDECODE_CUDA_CUDA_BACKEND_H_
#define LONGDECODE_CUDA_CUDA_BACKEND_H_

#include "base/backend.h"

namespace longdecode::cuda {

const Backend& backend();

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_CUDA_BACKEND_H_
