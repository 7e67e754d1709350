// Products of many tokens (prefill) through cuBLASLt, which is looked for when the object is made:
// no build or binary depends on it. Without it the kernel of `linear` does the work, 8 tokens at a
// time.
#ifndef LONGDECODE_CUDA_MODEL_GEMM_H_
#define LONGDECODE_CUDA_MODEL_GEMM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/model/model_ops.h"
#include "longdecode/status.h"
#include "longdecode/types.h"

namespace longdecode::cuda {

// y = W x, [num_tokens, num_rows]; pointers as in model_ops.h.
struct GemmArgs {
  const uint16_t* weight = nullptr;               // bf16 [num_rows, num_cols]
  const uint16_t* x = nullptr;                    // bf16 [num_tokens, num_cols]
  const float* bias = nullptr;                    // [num_rows] or nullptr; with kStoreF32 only
  LinearOutput output = LinearOutput::kStoreF32;  // all but kSiluUpBf16
  void* y = nullptr;
  int64_t num_rows = 0;
  int64_t num_cols = 0;  // a multiple of 8
  int64_t num_tokens = 0;
};
Status validate(const GemmArgs& args);

// Not for concurrent use. The device outlives the object.
class Gemm {
 public:
  // library: kFind looks for libcublasLt.so.13, then .12; kNone leaves it out.
  enum class Library { kFind, kNone };
  static Result<std::unique_ptr<Gemm>> create(const DeviceInfo& device,
                                              Library library = Library::kFind);
  virtual ~Gemm() = default;

  // "cublasLt 13.1.0", or "own kernel".
  virtual const std::string& name() const = 0;
  // Device bytes of scratch, of this object alone.
  virtual int64_t workspace_bytes() const = 0;
  // The first call of a shape chooses an algorithm on the host.
  virtual Status run(const GemmArgs& args, void* workspace, StreamHandle stream) = 0;
};

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_MODEL_GEMM_H_
