#include "cuda/kernels/gqa_append/gqa_append.h"

#include <algorithm>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"
#include "cuda/host/decode_tensors.h"
#include "cuda/host/status.h"
#include "cuda/kernels/gqa_append/cache_params.h"
#include "cuda/kernels/gqa_append/kernel.h"

namespace longdecode::cuda {

namespace {

using gqa_append::NewRows;
using gqa_append::Params;

constexpr int32_t kWriteThreads = 256;
// Rows written by a CTA before another one is worth its start.
constexpr int64_t kUnitsPerThread = 4;

NewRows new_rows(const TensorView& view) {
  return {view.data, stride_of(view, 0), stride_of(view, 1), stride_of(view, 2)};
}

Params make_params(const AppendArgs& args) {
  Params p = gqa_append::make_cache_params(args.kv, args.batch);
  p.k = new_rows(args.k);
  p.v = new_rows(args.v);
  p.max_new = static_cast<int32_t>(args.k.shape[1]);
  return p;
}

// A launch with quantize_ctas + write_ctas CTAs for each of `pairs`.
struct Launcher {
  const AppendArgs& args;
  Params params;
  int64_t pairs;
  cudaStream_t stream;

  Status operator()(int32_t quantize_ctas, int64_t write_ctas, int32_t num_threads) {
    const int64_t pair_ctas = quantize_ctas + write_ctas;
    if (pairs * pair_ctas > INT32_MAX) {
      return unsupported(
          "append: {} pairs of sequence and head need {} thread blocks each; at "
          "most 2^31 - 1 together",
          pairs, pair_ctas);
    }
    params.quantize_ctas = quantize_ctas;
    params.pair_ctas = make_divisor(static_cast<int32_t>(pair_ctas));
    return cuda_status(gqa_append::launch(params, args.k.dtype, args.kv.format.dtype,
                                          pairs * pair_ctas, num_threads, stream),
                       "launch of gqa_append");
  }
};

Status check_formats(const AppendArgs& args) {
  const DType dtype = args.kv.format.dtype;
  if (dtype == DType::kF32) {
    return unsupported("append: the CUDA backend writes bf16 and fp16 caches; dtype is 0 (f32)");
  }
  if (args.v.dtype != args.k.dtype) {
    return unsupported("append: k has dtype {}, v {}; the CUDA backend takes equal ones",
                       static_cast<int>(args.k.dtype), static_cast<int>(args.v.dtype));
  }
  return {};
}

}  // namespace

Status append_gqa(const AppendArgs& args, const DeviceInfo& device, StreamHandle stream) {
  LD_RETURN_IF_ERROR(check_formats(args));
  const KvFormat& format = args.kv.format;
  const int64_t max_new = args.k.shape[1];
  const int64_t pairs = int64_t{args.batch.batch} * format.num_kv_heads;
  if (pairs == 0 || max_new == 0) return Status();
  if (max_new > INT32_MAX / format.key_dim) {
    return unsupported("append: {} new tokens of a sequence; at most {}", max_new,
                       INT32_MAX / format.key_dim);
  }
  const DeviceGuard guard(device.device_idx);
  LD_RETURN_IF_ERROR(guard.status());
  Launcher launch{args, make_params(args), pairs, static_cast<cudaStream_t>(stream)};
  const int64_t units = max_new * (format.key_dim / 8);
  const auto write_ctas = [&](int32_t num_threads) {
    return ceil_div(units, num_threads * kUnitsPerThread);
  };
  const auto write_threads =
      static_cast<int32_t>(std::min<int64_t>(kWriteThreads, round_up(units, 32)));
  if (format.keys == KeyEncoding::kPlain)
    return launch(0, write_ctas(write_threads), write_threads);
  const int32_t page_threads = gqa_append::page_threads(format);
  const auto pages = static_cast<int32_t>(ceil_div(max_new, format.page_size));
  // The ring has room for kMaxTruncateTokens more than quantising can need: so few new tokens do
  // not touch the rows that are being quantised, and one launch does both.
  if (max_new <= kMaxTruncateTokens) return launch(pages, write_ctas(page_threads), page_threads);
  LD_RETURN_IF_ERROR(launch(pages, 0, page_threads));
  return launch(0, write_ctas(write_threads), write_threads);
}

}  // namespace longdecode::cuda
