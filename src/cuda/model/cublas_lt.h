// Gemm through cuBLASLt, loaded when asked for.
#ifndef LONGDECODE_CUDA_MODEL_CUBLAS_LT_H_
#define LONGDECODE_CUDA_MODEL_CUBLAS_LT_H_

#include <memory>

#include "cuda/model/gemm.h"

namespace longdecode::cuda {

// kUnavailable where the library (libcublasLt.so.13 or .12) is missing or does not start.
Result<std::unique_ptr<Gemm>> make_cublas_lt_gemm(const DeviceInfo& device);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_MODEL_CUBLAS_LT_H_
