#include "cuda/kernels/gqa_prefill/prefill.h"

#include <bit>

#include "base/status_macros.h"
#include "cuda/host/decode_tensors.h"
#include "cuda/host/requirements.h"
#include "cuda/host/status.h"
#include "cuda/kernels/gqa_append/cache_params.h"
#include "cuda/kernels/gqa_prefill/params.h"

namespace longdecode::cuda {
namespace {

using gqa_prefill::Params;

constexpr float kLog2E = 1.44269504088896340736f;

Status check(const PrefillArgs& args, const DeviceInfo& device) {
  const KvFormat& format = args.kv.format;
  Requirements requirements;
  requirements.require_hopper(device);
  requirements.require(format.op == Op::kGqa, "the cache is MLA; GQA is allowed");
  requirements.require(
      format.dtype == DType::kBF16 && args.q.dtype == DType::kBF16 && args.o.dtype == DType::kBF16,
      fmt::format("q, o and the cache have dtypes {}, {} and {}; all bf16",
                  static_cast<int>(args.q.dtype), static_cast<int>(args.o.dtype),
                  static_cast<int>(format.dtype)));
  requirements.require(format.key_dim <= 256 && format.key_dim % 8 == 0,
                       fmt::format("head_dim is {}; a multiple of 8 up to 256", format.key_dim));
  requirements.require(args.soft_cap == 0.0f, fmt::format("soft_cap is {}; 0", args.soft_cap));
  requirements.require(args.sliding_window == 0,
                       fmt::format("sliding_window is {}; 0", args.sliding_window));
  requirements.require(args.sink_logits == nullptr,
                       "sink_logits are given; they are not supported");
  requirements.require(args.q.shape[1] <= 65535,
                       fmt::format("num_q_heads is {}; at most 65535", args.q.shape[1]));
  return requirements.choose("cuda/gqa_prefill", device).status();
}

}  // namespace

Status prefill_gqa(const PrefillArgs& args, const DeviceInfo& device, StreamHandle stream) {
  LD_RETURN_IF_ERROR(check(args, device));
  if (args.q.shape[0] == 0) return Status();
  const KvFormat& format = args.kv.format;
  Params p{};
  p.g_q = static_cast<const uint16_t*>(args.q.data);
  p.q_token_stride = stride_of(args.q, 0);
  p.q_head_stride = stride_of(args.q, 1);
  p.g_o = static_cast<uint16_t*>(args.o.data);
  p.o_token_stride = stride_of(args.o, 0);
  p.o_head_stride = stride_of(args.o, 1);
  p.cache = gqa_append::make_cache_params(args.kv, args.batch);
  p.num_tokens = static_cast<int32_t>(args.q.shape[0]);
  p.num_q_heads = static_cast<int32_t>(args.q.shape[1]);
  p.group = p.num_q_heads / format.num_kv_heads;
  p.page_shift = std::countr_zero(static_cast<uint32_t>(format.page_size));
  p.softmax_scale_log2e = args.softmax_scale * kLog2E;
  const DeviceGuard guard(device.device_idx);
  LD_RETURN_IF_ERROR(guard.status());
  const bool two_plane = format.keys == KeyEncoding::kTwoPlane;
  const auto launch = format.key_dim <= 64    ? gqa_prefill::launch<64>
                      : format.key_dim <= 96  ? gqa_prefill::launch<96>
                      : format.key_dim <= 128 ? gqa_prefill::launch<128>
                                              : gqa_prefill::launch<256>;
  return cuda_status(launch(p, two_plane, static_cast<cudaStream_t>(stream)),
                     "launch of gqa_prefill");
}

}  // namespace longdecode::cuda
