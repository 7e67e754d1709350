#include "runner/gpu/gpu_decoder.h"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/host/status.h"
#include "ops/backends.h"
#include "runner/gpu/step_end.h"

namespace longdecode::runner {
namespace {

using cuda::cuda_status;

// From so many tokens on a prefill goes through matrix products; below, through the decode kernels,
// which read the weights once for 8 tokens.
constexpr int64_t kMinGemmTokens = 33;

// Tokens of a prefill's slice.
constexpr int32_t kSliceTokens = cuda::kMaxLinearTokens;
static_assert(kMaxCudaBatch == cuda::kMaxLinearTokens);

// Of the lengths of a prefill's slices, which are aligned to 16 bytes.
constexpr int64_t kSliceLenStride = 4;

// In the order of the stream; the values may go when it returns unless they are pinned.
template <typename T>
Status upload(std::span<const T> values, const DeviceBuffer& to, const char* what,
              cudaStream_t stream) {
  const cudaError_t error = cudaMemcpyAsync(to.data(), values.data(), values.size_bytes(),
                                            cudaMemcpyHostToDevice, stream);
  return cuda_status(error, what);
}

// Prefill attends densely to the stored keys, whatever the format.
Result<BoundPlan> make_prefill_plan(const ModelConfig& config, const SessionOptions& options,
                                    const KvFormat& format, cudaStream_t stream) {
  DecodeDesc desc;
  desc.method = Method::kDense;
  desc.format = format;
  desc.q_dtype = DType::kBF16;
  desc.num_q_heads = config.num_q_heads;
  desc.max_query_len = kMaxQueryLen;
  desc.max_kv_len = options.context_len;
  desc.softmax_scale = config.softmax_scale();
  return BoundPlan::create(desc, options.device, stream);
}

}  // namespace

auto GpuDecoder::create(const ModelConfig& config, const DeviceWeights& weights,
                        const SessionOptions& options, const KvFormat& format,
                        const GpuDecoderLimits& limits, cudaStream_t stream) -> Result<Pointer> {
  if (limits.max_batch < 1 || limits.max_batch > kMaxCudaBatch) {
    return invalid_argument("max_batch is {}; 1 to {} are allowed", limits.max_batch,
                            kMaxCudaBatch);
  }
  LayerPlanShape shape;
  shape.q_dtype = DType::kBF16;
  shape.max_batch = limits.max_batch;
  LD_ASSIGN_OR_RETURN(LayerPlans plans, LayerPlans::create(config, options, format, shape, stream));
  LD_ASSIGN_OR_RETURN(BoundPlan prefill_plan, make_prefill_plan(config, options, format, stream));
  Pointer decoder(new GpuDecoder(config, weights, options.device, std::move(plans),
                                 std::move(prefill_plan), limits, stream));
  const int64_t max_tokens = std::min<int64_t>(options.prefill_chunk, options.context_len);
  LD_RETURN_IF_ERROR(decoder->allocate(max_tokens));
  if (max_tokens >= kMinGemmTokens) {
    LD_ASSIGN_OR_RETURN(decoder->prefill_,
                        GpuPrefill::create(config, weights, options.device, max_tokens, stream));
  }
  return decoder;
}

GpuDecoder::GpuDecoder(const ModelConfig& config, const DeviceWeights& weights,
                       const DeviceInfo& device, LayerPlans plans, BoundPlan prefill_plan,
                       const GpuDecoderLimits& limits, cudaStream_t stream)
    : config_(config),
      weights_(weights),
      device_(device),
      plans_(std::move(plans)),
      prefill_plan_(std::move(prefill_plan)),
      limits_(limits),
      stream_(stream) {}

GpuDecoder::~GpuDecoder() { cudaFreeHost(history_); }

Status GpuDecoder::allocate(int64_t max_tokens) {
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(DeviceType::kCuda));
  const auto make = [&](DeviceBuffer* buffer, int64_t num_bytes) -> Status {
    LD_ASSIGN_OR_RETURN(*buffer, DeviceBuffer::create(num_bytes, *backend, device_));
    memory_bytes_ += num_bytes;
    return cuda_status(cudaMemsetAsync(buffer->data(), 0, static_cast<size_t>(num_bytes), stream_),
                       "cudaMemsetAsync");
  };
  const int64_t batch = limits_.max_batch;
  const int64_t tokens = kSliceTokens;  // and those of a batch
  const int64_t ids = std::max(tokens, max_tokens);
  LD_RETURN_IF_ERROR(make(&ids_, 4 * ids));
  LD_RETURN_IF_ERROR(make(&slice_lens_, 4 * kSliceLenStride * ids));
  LD_RETURN_IF_ERROR(make(&kv_lens_, 4 * batch));
  LD_RETURN_IF_ERROR(make(&positions_, 4 * batch));
  LD_RETURN_IF_ERROR(make(&seeds_, 8 * batch));
  LD_RETURN_IF_ERROR(make(&x_, 4 * tokens * config_.hidden_dim));
  LD_RETURN_IF_ERROR(make(&qkv_, 4 * tokens * (config_.q_dim() + 2 * config_.kv_dim())));
  LD_RETURN_IF_ERROR(make(&q_, 2 * tokens * config_.q_dim()));
  LD_RETURN_IF_ERROR(make(&o_, 2 * tokens * config_.q_dim()));
  LD_RETURN_IF_ERROR(make(&activations_, 2 * tokens * config_.ffn_dim));
  LD_RETURN_IF_ERROR(make(&logits_, 4 * batch * config_.vocab_size));
  LD_RETURN_IF_ERROR(make(&logit_bias_, 4 * int64_t{config_.vocab_size}));
  LD_RETURN_IF_ERROR(make(&sums_, sizeof(GpuDecodeSums)));
  if (limits_.wants_stats) {
    LD_RETURN_IF_ERROR(
        make(&stats_, 16 * int64_t{config_.num_layers} * batch * config_.num_kv_heads));
  }
  const int64_t history_bytes = 4 * kHistorySteps * batch;
  return cuda_status(cudaHostAlloc(reinterpret_cast<void**>(&history_),
                                   static_cast<size_t>(history_bytes), cudaHostAllocMapped),
                     "cudaHostAlloc of the token history");
}

Status GpuDecoder::set_ids(std::span<const int32_t> ids) {
  return upload(ids, ids_, "cudaMemcpyAsync of token ids", stream_);
}

Status GpuDecoder::set_logits(const float* logits) {
  const std::span<const float> row(logits, static_cast<size_t>(config_.vocab_size));
  return upload(row, logits_, "cudaMemcpyAsync of logits", stream_);
}

Status GpuDecoder::set_kv_lens(std::span<const int32_t> kv_lens) {
  return upload(kv_lens, kv_lens_, "cudaMemcpyAsync of lengths", stream_);
}

Status GpuDecoder::set_positions(std::span<const int32_t> positions) {
  return upload(positions, positions_, "cudaMemcpyAsync of positions", stream_);
}

Status GpuDecoder::set_seeds(std::span<const uint64_t> seeds) {
  return upload(seeds, seeds_, "cudaMemcpyAsync of seeds", stream_);
}

Status GpuDecoder::ban(std::span<const int32_t> tokens) {
  std::vector<float> bias(static_cast<size_t>(config_.vocab_size), 0.0f);
  for (const int32_t token : tokens) {
    bias[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
  }
  return upload(std::span<const float>(bias), logit_bias_, "cudaMemcpyAsync of banned tokens",
                stream_);
}

Result<GpuDecodeSums> GpuDecoder::sums() {
  GpuDecodeSums sums;
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream_), "decode steps"));
  LD_RETURN_IF_ERROR(
      cuda_status(cudaMemcpy(&sums, sums_.data(), sizeof(sums), cudaMemcpyDeviceToHost),
                  "cudaMemcpy of statistics"));
  return sums;
}

Status GpuDecoder::enqueue_decode(const KvCache& cache, unsigned parts) {
  Slice slice;
  slice.batch = cache.step();
  slice.batch.kv_lens = kv_lens_.as<int32_t>();
  slice.batch.query_lens = nullptr;
  slice.ids = ids_.as<int32_t>();
  slice.parts = parts;
  if (slice.batch.batch > limits_.max_batch) {
    return invalid_argument("a decode step of {} sequences; max_batch allows 1 to {}",
                            slice.batch.batch, limits_.max_batch);
  }
  LD_RETURN_IF_ERROR(enqueue_layers(slice, cache));
  if ((parts & kWeightParts) == 0) return Status();
  return enqueue_logits(x(), slice.batch.batch);
}

Status GpuDecoder::enqueue_layers(const Slice& slice, const KvCache& cache) {
  const int32_t num_tokens = slice.batch.batch * slice.query_len;
  if ((slice.parts & kOtherParts) != 0) {
    LD_RETURN_IF_ERROR(cuda::embed({slice.ids, weights_.token_embedding, x(), num_tokens,
                                    config_.vocab_size, config_.hidden_dim},
                                   device_, stream_));
  }
  for (int32_t l = 0; l < config_.num_layers; ++l) {
    const DeviceLayer& layer = weights_.layers[static_cast<size_t>(l)];
    if ((slice.parts & kWeightParts) != 0) {
      cuda::LinearArgs qkv;
      qkv.weight = layer.qkv;
      qkv.bias = layer.qkv_bias;
      qkv.x_f32 = x();
      qkv.norm_weight = layer.attn_norm;
      qkv.norm_eps = config_.rms_eps;
      qkv.y = qkv_.data();
      qkv.num_rows = config_.q_dim() + 2 * config_.kv_dim();
      qkv.num_cols = config_.hidden_dim;
      qkv.num_tokens = num_tokens;
      LD_RETURN_IF_ERROR(cuda::linear(qkv, device_, stream_));
    }
    LD_RETURN_IF_ERROR(enqueue_attention(slice, l, cache));
    if ((slice.parts & kWeightParts) != 0) LD_RETURN_IF_ERROR(enqueue_ffn(layer, num_tokens));
  }
  return Status();
}

Status GpuDecoder::enqueue_attention(const Slice& slice, int32_t layer_idx, const KvCache& cache) {
  const KvLayerView kv = cache.layer(layer_idx);
  if ((slice.parts & kOtherParts) != 0) {
    cuda::RopeAppendArgs rope;
    rope.model = rope_model(config_, weights_, weights_.layers[static_cast<size_t>(layer_idx)]);
    rope.batch = slice.batch;
    rope.query_len = slice.query_len;
    rope.qkv = qkv_.as<float>();
    rope.q = q_.as<uint16_t>();
    rope.kv = kv;
    LD_RETURN_IF_ERROR(cuda::rope_append(rope, device_, stream_));
  }
  if ((slice.parts & kAttentionParts) == 0) return Status();
  DecodeArgs args;
  args.query_len = slice.query_len;
  args.q = TensorView::contiguous(
      q_.data(), DType::kBF16,
      {slice.batch.batch, slice.query_len, config_.num_q_heads, config_.head_dim});
  args.o = args.q;
  args.o.data = o_.data();
  args.kv = kv;
  args.batch = slice.batch;
  if (slice.is_prefill) return prefill_plan_.plan().run(args, stream_);
  if (planted_q_ != nullptr) {
    const int64_t step_values = slice.batch.batch * config_.q_dim();
    args.q.data = const_cast<uint16_t*>(planted_q_ + layer_idx * step_values);
  }
  if (limits_.wants_stats) {
    const int64_t layer_values = int64_t{limits_.max_batch} * config_.num_kv_heads;
    args.stats.tokens_attended = stats_.as<int64_t>() + layer_idx * layer_values;
    args.stats.bytes_read = args.stats.tokens_attended + config_.num_layers * layer_values;
  }
  return plans_.of_layer(layer_idx).run(args, stream_);
}

Status GpuDecoder::enqueue_ffn(const DeviceLayer& layer, int32_t num_tokens) {
  cuda::LinearArgs output;
  output.weight = layer.attn_output;
  output.x_bf16 = o_.as<uint16_t>();
  output.output = cuda::LinearOutput::kAddF32;
  output.y = x_.data();
  output.num_rows = config_.hidden_dim;
  output.num_cols = config_.q_dim();
  output.num_tokens = num_tokens;
  LD_RETURN_IF_ERROR(cuda::linear(output, device_, stream_));
  cuda::LinearArgs gate_up;
  gate_up.weight = layer.gate_up;
  gate_up.x_f32 = x();
  gate_up.norm_weight = layer.ffn_norm;
  gate_up.norm_eps = config_.rms_eps;
  gate_up.output = cuda::LinearOutput::kSiluUpBf16;
  gate_up.y = activations_.data();
  gate_up.num_rows = 2 * int64_t{config_.ffn_dim};
  gate_up.num_cols = config_.hidden_dim;
  gate_up.num_tokens = num_tokens;
  LD_RETURN_IF_ERROR(cuda::linear(gate_up, device_, stream_));
  cuda::LinearArgs down = output;
  down.weight = layer.ffn_down;
  down.x_bf16 = activations_.as<uint16_t>();
  down.num_cols = config_.ffn_dim;
  return cuda::linear(down, device_, stream_);
}

Status GpuDecoder::enqueue_logits(const float* x, int32_t num_tokens) {
  cuda::LinearArgs args;
  args.weight = weights_.output;
  args.bias = logit_bias_.as<float>();
  args.x_f32 = x;
  args.norm_weight = weights_.output_norm;
  args.norm_eps = config_.rms_eps;
  args.y = logits_.data();
  args.num_rows = config_.vocab_size;
  args.num_cols = config_.hidden_dim;
  args.num_tokens = num_tokens;
  return cuda::linear(args, device_, stream_);
}

Status GpuDecoder::enqueue_sample(int32_t batch, const SamplerOptions& options) {
  cuda::SampleArgs args;
  args.logits = logits();
  args.batch = batch;
  args.vocab_size = config_.vocab_size;
  args.temperature = options.temperature;
  args.top_k = options.top_k;
  args.top_p = options.top_p;
  args.seeds = seeds_.as<uint64_t>();
  args.ids = ids_.as<int32_t>();
  args.steps = positions_.as<int32_t>();
  args.history = history_;
  args.history_steps = kHistorySteps;
  return cuda::sample(args, device_, stream_);
}

Status GpuDecoder::enqueue_end(int32_t batch) {
  StepEndArgs args;
  args.kv_lens = kv_lens_.as<int32_t>();
  args.batch = batch;
  args.sums = sums_.as<double>();
  args.num_layers = config_.num_layers;
  args.max_batch = limits_.max_batch;
  args.num_kv_heads = config_.num_kv_heads;
  if (limits_.wants_stats) {
    args.tokens_attended = stats_.as<int64_t>();
    args.bytes_read = args.tokens_attended +
                      int64_t{config_.num_layers} * limits_.max_batch * config_.num_kv_heads;
  }
  return cuda_status(end_step(args, stream_), "launch of end_step");
}

Status GpuDecoder::enqueue_prefill(KvCache* cache, int64_t first_position, int64_t count,
                                   bool wants_logits) {
  const float* last = nullptr;
  if (count >= kMinGemmTokens) {
    LD_RETURN_IF_ERROR(prefill_->enqueue(ids_.as<int32_t>(), count, cache));
    last = prefill_->x() + (count - 1) * config_.hidden_dim;
  } else {
    LD_RETURN_IF_ERROR(enqueue_slices(*cache, first_position, count));
    last = x() + (count - 1) % kSliceTokens * config_.hidden_dim;
    for (int32_t l = 0; l < config_.num_layers; ++l) {
      LD_RETURN_IF_ERROR(cache->mark_appended(l));
    }
  }
  return wants_logits ? enqueue_logits(last, 1) : Status();
}

Status GpuDecoder::enqueue_slices(const KvCache& cache, int64_t first_position, int64_t count) {
  std::vector<int32_t> lens;  // one for each slice, at multiples of 16 bytes
  for (int64_t done = 0; done < count; done += kSliceTokens) {
    const int64_t end = std::min<int64_t>(done + kSliceTokens, count);
    lens.insert(lens.end(), kSliceLenStride, static_cast<int32_t>(first_position + end));
  }
  LD_RETURN_IF_ERROR(
      upload(std::span<const int32_t>(lens), slice_lens_, "cudaMemcpyAsync of lengths", stream_));
  Slice slice;
  slice.batch = cache.step();
  slice.batch.query_lens = nullptr;
  slice.is_prefill = true;
  for (int64_t done = 0; done < count; done += kSliceTokens) {
    slice.query_len = static_cast<int32_t>(std::min<int64_t>(kSliceTokens, count - done));
    slice.batch.kv_lens = slice_lens_.as<int32_t>() + done / kSliceTokens * kSliceLenStride;
    slice.ids = ids_.as<int32_t>() + done;
    LD_RETURN_IF_ERROR(enqueue_layers(slice, cache));
  }
  return Status();
}

}  // namespace longdecode::runner
