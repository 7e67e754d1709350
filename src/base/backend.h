// What a backend (CPU, CUDA) implements. The ops layer validates first and calls it with arguments
// that already satisfy the public contract; see src/ops/backends.h for the registry.
#ifndef LONGDECODE_BASE_BACKEND_H_
#define LONGDECODE_BASE_BACKEND_H_

#include <cstdint>
#include <memory>

#include "longdecode/attention.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "longdecode/types.h"

namespace longdecode {

// Causal attention of a chunk of new tokens over the cache, their own keys included (already
// appended). Attends densely to the stored keys, whatever the format. Tokens of one sequence.
struct PrefillArgs {
  TensorView q;  // [num_tokens, num_q_heads, key_dim], any DType
  TensorView o;  // [num_tokens, num_q_heads, value_dim], dtype of q
  KvLayerView kv;
  BatchView batch;  // batch 1; kv_lens[0] counts the chunk, token t sits at kv_len - num_tokens + t
  float softmax_scale = 0.0f;
  float soft_cap = 0.0f;
  int64_t sliding_window = 0;
  const float* sink_logits = nullptr;  // [num_q_heads] or nullptr
};

// A decode kernel bound to a descriptor.
class DecodeKernel {
 public:
  virtual ~DecodeKernel() = default;
  virtual int64_t workspace_bytes() const = 0;
  virtual Status init(void* workspace, StreamHandle stream) = 0;
  virtual Status run(const DecodeArgs& args, void* workspace, StreamHandle stream) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Result<DeviceInfo> detect(int32_t device_idx) const = 0;

  // desc has passed validation and has its softmax_scale resolved. kUnsupported lists reasons.
  virtual Result<KernelChoice> select(const DecodeDesc& desc, const DeviceInfo& device) const = 0;
  virtual Result<std::unique_ptr<DecodeKernel>> make_decode(const DecodeDesc& desc,
                                                            const DeviceInfo& device) const = 0;
  virtual Status append(const AppendArgs& args, const DeviceInfo& device,
                        StreamHandle stream) const = 0;
  virtual Status prefill(const PrefillArgs& args, const DeviceInfo& device,
                         StreamHandle stream) const = 0;
  virtual Status merge(const MergeArgs& args, const DeviceInfo& device,
                       StreamHandle stream) const = 0;

  // Memory of the device, 64-byte aligned or better. copy: `to` and `from` are memory of the device
  // or of the host; asynchronous on `stream` for CUDA.
  virtual Result<void*> allocate(int64_t num_bytes, const DeviceInfo& device) const = 0;
  virtual void deallocate(void* memory, const DeviceInfo& device) const = 0;
  virtual Status copy(void* to, const void* from, int64_t num_bytes, const DeviceInfo& device,
                      StreamHandle stream) const = 0;
  // True when run/append may check lengths and page ids on the host.
  virtual bool host_readable() const = 0;
};

}  // namespace longdecode

#endif  // LONGDECODE_BASE_BACKEND_H_
