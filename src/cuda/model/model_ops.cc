#include "cuda/model/model_ops.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/host/architecture.h"
#include "cuda/host/status.h"
#include "cuda/kernels/gqa_append/cache_params.h"
#include "cuda/kernels/matvec/kernel.h"
#include "cuda/kernels/rotary/kernel.h"
#include "cuda/kernels/rows/kernel.h"
#include "cuda/kernels/sampling/kernel.h"

namespace longdecode::cuda {
namespace {

// Normalised bf16 values that fit in shared memory beside the rest, of all tokens of a launch.
constexpr int64_t kMaxNormalised = 61440;

Status check_pointer(const void* pointer, const char* op, const char* name) {
  if (pointer == nullptr) return invalid_argument("{}: {} is null", op, name);
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) {
    return invalid_argument("{}: {} is {}; a multiple of 16 is needed", op, name, pointer);
  }
  return {};
}

Status check_range(int64_t value, int64_t low, int64_t high, const char* op, const char* name) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{}: {} is {}; {} to {} are allowed", op, name, value, low, high);
}

// Of a row: a positive multiple of 8.
Status check_dim(int64_t value, const char* op, const char* name) {
  if (value > 0 && value <= INT32_MAX / 4 && value % 8 == 0) return {};
  return invalid_argument("{}: {} is {}; a positive multiple of 8 up to 2^29 is needed", op, name,
                          value);
}

// Runs launch(stream) on the device.
template <class Launch>
Status start(const DeviceInfo& device, StreamHandle stream, const char* what,
             const Launch& launch) {
  LD_RETURN_IF_ERROR(check_model_device(device));
  const DeviceGuard guard(device.device_idx);
  LD_RETURN_IF_ERROR(guard.status());
  return cuda_status(launch(static_cast<cudaStream_t>(stream)), what);
}

Status check_linear(const LinearArgs& args) {
  constexpr const char* kOp = "linear";
  LD_RETURN_IF_ERROR(check_pointer(args.weight, kOp, "weight"));
  LD_RETURN_IF_ERROR(check_pointer(args.y, kOp, "y"));
  LD_RETURN_IF_ERROR(check_range(args.num_tokens, 1, kMaxLinearTokens, kOp, "num_tokens"));
  LD_RETURN_IF_ERROR(check_range(args.num_rows, 1, INT32_MAX / 4, kOp, "num_rows"));
  LD_RETURN_IF_ERROR(check_dim(args.num_cols, kOp, "num_cols"));
  if ((args.x_bf16 == nullptr) == (args.x_f32 == nullptr)) {
    return invalid_argument("linear: either x_bf16 or x_f32 is given");
  }
  if (args.output == LinearOutput::kSiluUpBf16 && args.num_rows % (2 * kGateBlock) != 0) {
    return invalid_argument("linear: num_rows is {}; interleaved rows are a multiple of {}",
                            args.num_rows, 2 * kGateBlock);
  }
  if (args.x_f32 == nullptr) return check_pointer(args.x_bf16, kOp, "x_bf16");
  LD_RETURN_IF_ERROR(check_pointer(args.x_f32, kOp, "x_f32"));
  LD_RETURN_IF_ERROR(check_pointer(args.norm_weight, kOp, "norm_weight"));
  if (args.num_cols <= kMaxNormalised) return {};
  return unsupported("linear: num_cols is {}; at most {} where x is normalised", args.num_cols,
                     kMaxNormalised);
}

matvec::Store store_of(LinearOutput output) {
  switch (output) {
    case LinearOutput::kStoreBf16:
      return matvec::Store::kBf16;
    case LinearOutput::kAddF32:
      return matvec::Store::kAddF32;
    case LinearOutput::kSiluUpBf16:
      return matvec::Store::kSiluUpBf16;
    case LinearOutput::kStoreF32:
      break;
  }
  return matvec::Store::kF32;
}

int64_t y_row_bytes(const LinearArgs& args) {
  switch (args.output) {
    case LinearOutput::kStoreBf16:
      return 2 * args.num_rows;
    case LinearOutput::kSiluUpBf16:
      return args.num_rows;
    case LinearOutput::kStoreF32:
    case LinearOutput::kAddF32:
      break;
  }
  return 4 * args.num_rows;
}

Status check_rope(const RopeModel& m, const BatchView& batch, int32_t query_len, const char* op) {
  LD_RETURN_IF_ERROR(check_range(m.num_q_heads, 1, 1024, op, "num_q_heads"));
  LD_RETURN_IF_ERROR(check_range(m.num_kv_heads, 1, 1024, op, "num_kv_heads"));
  LD_RETURN_IF_ERROR(check_dim(m.head_dim, op, "head_dim"));
  LD_RETURN_IF_ERROR(check_range(m.head_dim, 8, rotary::kMaxHeadDim, op, "head_dim"));
  LD_RETURN_IF_ERROR(check_range(m.rope_dim, 0, m.head_dim, op, "rope_dim"));
  if (m.rope_dim % 2 != 0) return invalid_argument("{}: rope_dim is {}; even", op, m.rope_dim);
  LD_RETURN_IF_ERROR(check_pointer(m.frequencies, op, "frequencies"));
  LD_RETURN_IF_ERROR(check_range(batch.batch, 1, 65536, op, "batch"));
  LD_RETURN_IF_ERROR(check_range(query_len, 1, 1 << 24, op, "query_len"));
  if (batch.kv_lens == nullptr) return invalid_argument("{}: batch.kv_lens is null", op);
  return {};
}

rotary::Params rope_params(const RopeModel& m, const BatchView& batch, int32_t query_len) {
  rotary::Params p{};
  p.model = {m.num_q_heads, m.num_kv_heads, m.head_dim, m.rope_dim, m.adjacent_pairs,
             m.frequencies, m.q_norm,       m.k_norm,   m.norm_eps};
  p.g_kv_lens = batch.kv_lens;
  p.g_query_lens = batch.query_lens;
  p.batch = batch.batch;
  p.query_len = query_len;
  return p;
}

Status check_cache(const RopeAppendArgs& args) {
  const KvFormat& format = args.kv.format;
  if (format.op != Op::kGqa || format.dtype != DType::kBF16) {
    return unsupported("rope_append: the cache has op {} and dtype {}; GQA in bf16 is allowed",
                       static_cast<int>(format.op), static_cast<int>(format.dtype));
  }
  if (format.num_kv_heads != args.model.num_kv_heads || format.key_dim != args.model.head_dim) {
    return invalid_argument(
        "rope_append: the cache has {} heads of {} channels, the model {} of {}",
        format.num_kv_heads, format.key_dim, args.model.num_kv_heads, args.model.head_dim);
  }
  if (args.batch.block_table == nullptr) {
    return invalid_argument("rope_append: batch.block_table is null");
  }
  if (format.keys == KeyEncoding::kTwoPlane && args.batch.slots == nullptr) {
    return invalid_argument("rope_append: batch.slots is null; a two-plane cache needs them");
  }
  return {};
}

}  // namespace

Status check_model_device(const DeviceInfo& device) {
  if (architecture_of(device) == Architecture::kSm90a) return {};
  return unsupported("models on CUDA: compute_capability is {}; their kernels are for sm_90a (90)",
                     device.compute_capability);
}

Status embed(const EmbedArgs& args, const DeviceInfo& device, StreamHandle stream) {
  constexpr const char* kOp = "embed";
  LD_RETURN_IF_ERROR(check_pointer(args.ids, kOp, "ids"));
  LD_RETURN_IF_ERROR(check_pointer(args.embedding, kOp, "embedding"));
  LD_RETURN_IF_ERROR(check_pointer(args.x, kOp, "x"));
  LD_RETURN_IF_ERROR(check_range(args.num_tokens, 1, INT32_MAX, kOp, "num_tokens"));
  LD_RETURN_IF_ERROR(check_range(args.vocab_size, 1, INT32_MAX, kOp, "vocab_size"));
  LD_RETURN_IF_ERROR(check_dim(args.hidden_dim, kOp, "hidden_dim"));
  const rows::EmbedParams params{args.ids,        args.embedding,  args.x,
                                 args.num_tokens, args.vocab_size, args.hidden_dim};
  return start(device, stream, "launch of embed",
               [&](cudaStream_t s) { return rows::launch(params, s); });
}

Status linear(const LinearArgs& args, const DeviceInfo& device, StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_linear(args));
  matvec::Params p{};
  p.g_weight = args.weight;
  p.g_bias = args.bias;
  p.g_norm_weight = args.norm_weight;
  p.norm_eps = args.norm_eps;
  p.store = store_of(args.output);
  p.num_rows = static_cast<int32_t>(args.num_rows);
  p.num_cols = static_cast<int32_t>(args.num_cols);
  // Wide rows are normalised for fewer tokens at a time.
  const auto step = static_cast<int32_t>(
      args.x_f32 == nullptr ? kMaxLinearTokens
                            : std::min<int64_t>(kMaxLinearTokens, kMaxNormalised / args.num_cols));
  for (int32_t token = 0; token < args.num_tokens; token += step) {
    const int64_t column = int64_t{token} * args.num_cols;
    p.num_tokens = std::min(step, args.num_tokens - token);
    if (args.x_f32 != nullptr) p.g_x_f32 = args.x_f32 + column;
    if (args.x_bf16 != nullptr) p.g_x_bf16 = args.x_bf16 + column;
    p.g_y = static_cast<char*>(args.y) + token * y_row_bytes(args);
    LD_RETURN_IF_ERROR(start(device, stream, "launch of linear",
                             [&](cudaStream_t s) { return matvec::launch(p, device.num_sms, s); }));
  }
  return {};
}

Status rope(const RopeArgs& args, const DeviceInfo& device, StreamHandle stream) {
  constexpr const char* kOp = "rope";
  LD_RETURN_IF_ERROR(check_rope(args.model, args.batch, args.query_len, kOp));
  LD_RETURN_IF_ERROR(check_pointer(args.qkv, kOp, "qkv"));
  LD_RETURN_IF_ERROR(check_pointer(args.q, kOp, "q"));
  LD_RETURN_IF_ERROR(check_pointer(args.k, kOp, "k"));
  LD_RETURN_IF_ERROR(check_pointer(args.v, kOp, "v"));
  rotary::Params p = rope_params(args.model, args.batch, args.query_len);
  p.g_qkv = args.qkv;
  p.g_q = args.q;
  p.g_k = args.k;
  p.g_v = args.v;
  return start(device, stream, "launch of rope",
               [&](cudaStream_t s) { return rotary::launch(p, s); });
}

Status rope_append(const RopeAppendArgs& args, const DeviceInfo& device, StreamHandle stream) {
  constexpr const char* kOp = "rope_append";
  LD_RETURN_IF_ERROR(check_rope(args.model, args.batch, args.query_len, kOp));
  LD_RETURN_IF_ERROR(check_range(args.query_len, 1, kMaxLinearTokens, kOp, "query_len"));
  LD_RETURN_IF_ERROR(check_pointer(args.qkv, kOp, "qkv"));
  LD_RETURN_IF_ERROR(check_pointer(args.q, kOp, "q"));
  LD_RETURN_IF_ERROR(check_cache(args));
  static_assert(kMaxLinearTokens <= kQuantizeLag && kMaxLinearTokens <= kMaxTruncateTokens);
  rotary::AppendParams p{};
  p.rope = rope_params(args.model, args.batch, args.query_len);
  p.rope.g_qkv = args.qkv;
  p.rope.g_q = args.q;
  p.cache = gqa_append::make_cache_params(args.kv, args.batch);
  p.cache.max_new = args.query_len;
  const bool two_plane = args.kv.format.keys == KeyEncoding::kTwoPlane;
  const int32_t page_threads = two_plane ? gqa_append::page_threads(args.kv.format) : 0;
  return start(device, stream, "launch of rope_append",
               [&](cudaStream_t s) { return rotary::launch_append(p, page_threads, s); });
}

Status sample(const SampleArgs& args, const DeviceInfo& device, StreamHandle stream) {
  constexpr const char* kOp = "sample";
  LD_RETURN_IF_ERROR(check_pointer(args.logits, kOp, "logits"));
  LD_RETURN_IF_ERROR(check_pointer(args.ids, kOp, "ids"));
  LD_RETURN_IF_ERROR(check_pointer(args.steps, kOp, "steps"));
  LD_RETURN_IF_ERROR(check_range(args.batch, 1, 65536, kOp, "batch"));
  LD_RETURN_IF_ERROR(check_range(args.vocab_size, 1, sampling::kMaxVocab, kOp, "vocab_size"));
  LD_RETURN_IF_ERROR(check_range(args.top_k, 0, INT32_MAX, kOp, "top_k"));
  if (args.history != nullptr) {
    LD_RETURN_IF_ERROR(check_range(args.history_steps, 1, INT32_MAX, kOp, "history_steps"));
  }
  if (!(args.temperature >= 0.0f) || std::isinf(args.temperature)) {
    return invalid_argument("sample: temperature is {}; it must be finite and >= 0",
                            args.temperature);
  }
  if (!(args.top_p >= 0.0f && args.top_p <= 1.0f)) {
    return invalid_argument("sample: top_p is {}; it must be within 0 and 1", args.top_p);
  }
  const bool greedy = args.temperature == 0.0f;
  if (!greedy) LD_RETURN_IF_ERROR(check_pointer(args.seeds, kOp, "seeds"));
  const sampling::Params p{
      args.logits, args.batch,   args.vocab_size,   greedy ? 0.0f : 1.0f / args.temperature,
      args.top_k,  args.top_p,   args.seeds,        args.ids,
      args.steps,  args.history, args.history_steps};
  return start(device, stream, "launch of sample",
               [&](cudaStream_t s) { return sampling::launch(p, greedy, s); });
}

Status rms_norm(const RmsNormArgs& args, const DeviceInfo& device, StreamHandle stream) {
  constexpr const char* kOp = "rms_norm";
  LD_RETURN_IF_ERROR(check_pointer(args.x, kOp, "x"));
  LD_RETURN_IF_ERROR(check_pointer(args.weight, kOp, "weight"));
  LD_RETURN_IF_ERROR(check_pointer(args.out, kOp, "out"));
  LD_RETURN_IF_ERROR(check_range(args.num_tokens, 1, INT32_MAX, kOp, "num_tokens"));
  LD_RETURN_IF_ERROR(check_dim(args.hidden_dim, kOp, "hidden_dim"));
  const rows::RmsNormParams params{args.x,   args.weight,     args.eps,
                                   args.out, args.num_tokens, args.hidden_dim};
  return start(device, stream, "launch of rms_norm",
               [&](cudaStream_t s) { return rows::launch(params, s); });
}

Status silu_up(const SiluUpArgs& args, const DeviceInfo& device, StreamHandle stream) {
  constexpr const char* kOp = "silu_up";
  LD_RETURN_IF_ERROR(check_pointer(args.gate_up, kOp, "gate_up"));
  LD_RETURN_IF_ERROR(check_pointer(args.out, kOp, "out"));
  LD_RETURN_IF_ERROR(check_range(args.num_tokens, 1, INT32_MAX, kOp, "num_tokens"));
  LD_RETURN_IF_ERROR(check_dim(args.ffn_dim, kOp, "ffn_dim"));
  const rows::SiluUpParams params{args.gate_up, args.out, args.num_tokens, args.ffn_dim};
  return start(device, stream, "launch of silu_up",
               [&](cudaStream_t s) { return rows::launch(params, s); });
}

}  // namespace longdecode::cuda
