#include <cmath>

#include "base/errors.h"
#include "base/status_macros.h"
#include "ops/tensor_checks.h"
#include "ops/validate.h"

namespace longdecode {
namespace {

constexpr int32_t kMaxGroup = 16;
constexpr int32_t kMaxMlaHeads = 128;
constexpr int32_t kMaxBatch = 1 << 20;

Status check_heads(const DecodeDesc& desc) {
  const int32_t kv_heads = desc.format.num_kv_heads;
  if (desc.format.op == Op::kMla) {
    if (desc.num_q_heads >= 1 && desc.num_q_heads <= kMaxMlaHeads) return {};
    return invalid_argument("num_q_heads is {}; mla allows 1 to {}", desc.num_q_heads,
                            kMaxMlaHeads);
  }
  if (desc.num_q_heads < kv_heads || desc.num_q_heads % kv_heads != 0 ||
      desc.num_q_heads / kv_heads > kMaxGroup) {
    return invalid_argument(
        "num_q_heads is {} with {} kv heads; allowed: multiples of {} up to {} (groups of 1 to {})",
        desc.num_q_heads, kv_heads, kv_heads, int64_t{kv_heads} * kMaxGroup, kMaxGroup);
  }
  return {};
}

Status check_limits(const DecodeDesc& desc) {
  if (desc.max_batch < 1 || desc.max_batch > kMaxBatch) {
    return invalid_argument("max_batch is {}; allowed: 1 to {}", desc.max_batch, kMaxBatch);
  }
  if (desc.max_query_len < 1 || desc.max_query_len > kMaxQueryLen) {
    return invalid_argument("max_query_len is {}; allowed: 1 to {}", desc.max_query_len,
                            kMaxQueryLen);
  }
  if (desc.max_kv_len < 1 || desc.max_kv_len > kMaxKvLen) {
    return invalid_argument("max_kv_len is {}; allowed: 1 to {}", desc.max_kv_len, kMaxKvLen);
  }
  return {};
}

Status check_options(const DecodeDesc& desc) {
  if (!std::isfinite(desc.softmax_scale) || desc.softmax_scale < 0.0f) {
    return invalid_argument(
        "softmax_scale is {}; allowed: finite and above 0, or 0 for "
        "1 / sqrt(head_dim)",
        desc.softmax_scale);
  }
  if (desc.format.op == Op::kMla && desc.softmax_scale == 0.0f) {
    return invalid_argument("softmax_scale is 0; mla has no default, allowed: finite and above 0");
  }
  if (!std::isfinite(desc.soft_cap) || desc.soft_cap < 0.0f) {
    return invalid_argument("soft_cap is {}; allowed: finite and above 0, or 0 for none",
                            desc.soft_cap);
  }
  if (desc.sliding_window < 0) {
    return invalid_argument("sliding_window is {}; allowed: 1 or more tokens, or 0 for none",
                            desc.sliding_window);
  }
  return {};
}

Status check_ffd(const FfdOptions& ffd) {
  if (std::isnan(ffd.delta) || ffd.delta < 0.0f) {
    return invalid_argument("ffd.delta is {}; allowed: 0 or more nats, infinity included",
                            ffd.delta);
  }
  if (!std::isfinite(ffd.margin_sigmas) || ffd.margin_sigmas < 0.0f) {
    return invalid_argument("ffd.margin_sigmas is {}; allowed: finite, 0 or more",
                            ffd.margin_sigmas);
  }
  if (ffd.sink_tokens < 0) {
    return invalid_argument("ffd.sink_tokens is {}; allowed: 0 or more", ffd.sink_tokens);
  }
  if (ffd.recent_tokens < 0) {
    return invalid_argument("ffd.recent_tokens is {}; allowed: 0 or more", ffd.recent_tokens);
  }
  return {};
}

}  // namespace

Status validate(const DeviceInfo& device) {
  if (device.type == DeviceType::kCpu &&
      (device.num_threads < 1 || device.num_threads > kMaxThreads)) {
    return invalid_argument("device.num_threads is {}; allowed: 1 to {}", device.num_threads,
                            kMaxThreads);
  }
  return {};
}

Status validate(const DecodeDesc& desc) {
  if (desc.method != Method::kDense && desc.method != Method::kFfd) {
    return invalid_argument("method is {}; allowed: 0 (dense), 1 (ffd)",
                            static_cast<int32_t>(desc.method));
  }
  LD_RETURN_IF_ERROR(validate(desc.format));
  LD_RETURN_IF_ERROR(check_dtype_value("q_dtype", desc.q_dtype));
  LD_RETURN_IF_ERROR(check_heads(desc));
  LD_RETURN_IF_ERROR(check_limits(desc));
  LD_RETURN_IF_ERROR(check_options(desc));
  return desc.method == Method::kFfd ? check_ffd(desc.ffd) : Status();
}

float resolved_softmax_scale(const DecodeDesc& desc) {
  if (desc.softmax_scale != 0.0f) return desc.softmax_scale;
  return 1.0f / std::sqrt(static_cast<float>(desc.format.key_dim));
}

}  // namespace longdecode
