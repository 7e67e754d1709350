#include "cuda/kernels/mla_append/mla_append.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/host/decode_tensors.h"
#include "cuda/host/status.h"
#include "cuda/kernels/mla_append/kernel.h"

namespace longdecode::cuda {

Status append_mla(const AppendArgs& args, const DeviceInfo& device, StreamHandle stream) {
  const KvFormat& format = args.kv.format;
  if (format.keys != KeyEncoding::kPlain || format.dtype == DType::kF32) {
    return unsupported(
        "append: the CUDA backend writes plain bf16 or fp16 MLA caches; this one is "
        "{} with dtype {}",
        format.keys == KeyEncoding::kPlain ? "plain" : "two-plane", static_cast<int>(format.dtype));
  }
  const int64_t max_new = args.k.shape[1];
  const int64_t num_tokens = args.batch.batch * max_new;
  if (num_tokens == 0) return Status();
  if (num_tokens > INT32_MAX) {
    return unsupported("append: batch {} x {} new tokens; at most 2^31 - 1 together",
                       args.batch.batch, max_new);
  }
  const DeviceGuard guard(device.device_idx);
  LD_RETURN_IF_ERROR(guard.status());
  AppendParams p{};
  p.g_k = args.k.data;
  p.k_batch_stride = stride_of(args.k, 0);
  p.k_token_stride = stride_of(args.k, 1);
  p.g_pool = static_cast<uint16_t*>(args.kv.k.data);
  p.page_stride = stride_of(args.kv.k, 0);
  p.row_stride = args.kv.k.stride[2];
  p.g_block_table = args.batch.block_table;
  p.block_table_stride = args.batch.block_table_stride;
  p.g_kv_lens = args.batch.kv_lens;
  p.g_query_lens = args.batch.query_lens;
  p.max_new = static_cast<int32_t>(max_new);
  p.page_size = format.page_size;
  return cuda_status(
      launch_mla_append(p, args.k.dtype, format.dtype, static_cast<int32_t>(num_tokens),
                        static_cast<cudaStream_t>(stream)),
      "launch of mla_append");
}

}  // namespace longdecode::cuda
