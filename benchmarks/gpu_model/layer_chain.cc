#include "benchmarks/gpu_model/layer_chain.h"

#include <cmath>
#include <cstring>

namespace longdecode::gpu_bench {

using cuda::LinearArgs;
using cuda::LinearOutput;

namespace {

Status fill(void* memory, int value, int64_t num_bytes) {
  if (memory == nullptr) return {};
  return cuda::cuda_status(cudaMemset(memory, value, static_cast<size_t>(num_bytes)), "fill");
}

}  // namespace

Result<std::unique_ptr<LayerChain>> LayerChain::create(const DeviceInfo& device, int32_t num_layers,
                                                       int64_t kv_len, KeyEncoding keys) {
  std::unique_ptr<LayerChain> chain(new LayerChain);
  chain->device_ = device;
  chain->num_layers_ = num_layers;
  LD_RETURN_IF_ERROR(chain->init(kv_len, keys));
  return chain;
}

Status LayerChain::init(int64_t kv_len, KeyEncoding keys) {
  const auto weights = [&](DeviceBuffer* memory, int64_t count) -> Status {
    LD_ASSIGN_OR_RETURN(*memory, random_bf16(count, device_));
    return {};
  };
  const auto allocate = [&](DeviceBuffer* memory, int64_t num_bytes) -> Status {
    LD_ASSIGN_OR_RETURN(*memory, zeros(num_bytes, device_));
    return {};
  };
  layers_.resize(static_cast<size_t>(num_layers_));
  for (Layer& layer : layers_) {
    LD_RETURN_IF_ERROR(weights(&layer.qkv, int64_t{kQkvRows} * kHidden));
    LD_RETURN_IF_ERROR(weights(&layer.o, int64_t{kHidden} * kQHeads * kHeadDim));
    LD_RETURN_IF_ERROR(weights(&layer.gate_up, int64_t{2} * kFfn * kHidden));
    LD_RETURN_IF_ERROR(weights(&layer.down, int64_t{kHidden} * kFfn));
  }
  LD_RETURN_IF_ERROR(weights(&embedding_, int64_t{kVocab} * kHidden));
  LD_ASSIGN_OR_RETURN(norm_, upload(std::vector<float>(kHidden, 1.0f), device_));
  std::vector<float> frequencies(kHeadDim);  // as doubles, half as many
  for (int32_t i = 0; i < kHeadDim / 2; ++i) {
    const double frequency = std::pow(5e5, -2.0 * i / kHeadDim);
    std::memcpy(frequencies.data() + 2 * i, &frequency, sizeof(frequency));
  }
  LD_ASSIGN_OR_RETURN(frequencies_, upload(frequencies, device_));
  LD_RETURN_IF_ERROR(allocate(&ids_, 16));
  LD_RETURN_IF_ERROR(allocate(&steps_, 16));
  LD_ASSIGN_OR_RETURN(x_, upload(std::vector<float>(kHidden, 0.5f), device_));
  LD_RETURN_IF_ERROR(allocate(&qkv_, int64_t{4} * kQkvRows));
  LD_RETURN_IF_ERROR(weights(&q_, kQHeads * kHeadDim));
  LD_RETURN_IF_ERROR(weights(&o_, kQHeads * kHeadDim));
  LD_RETURN_IF_ERROR(weights(&act_, kFfn));
  LD_RETURN_IF_ERROR(allocate(&logits_, int64_t{4} * kVocab));

  KvCacheDesc desc;
  desc.format = KvFormat::gqa(keys, DType::kBF16, kKvHeads, kHeadDim, 128);
  desc.num_layers = num_layers_;
  desc.num_pages = kv_len / 128 + 2;
  desc.max_kv_len = kv_len + 128;
  LD_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(desc, device_));
  cache_ = std::make_unique<KvCache>(std::move(cache));
  LD_ASSIGN_OR_RETURN(const SequenceId sequence, cache_->add_sequence());
  // What the pools hold does not matter, as long as it is finite.
  const std::vector<SequenceId> sequences = {sequence};
  const std::vector<int32_t> new_tokens = {static_cast<int32_t>(kv_len)};
  LD_RETURN_IF_ERROR(cache_->reserve(sequences, new_tokens));
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    const KvLayerView kv = cache_->layer(layer);
    for (const TensorView& view : {kv.k, kv.v, kv.recent_k}) {
      const int64_t num_bytes = view.data == nullptr ? 0 : 2 * view.shape[0] * view.stride[0];
      LD_RETURN_IF_ERROR(fill(view.data, 0, num_bytes));
    }
    // Small steps, and zeros of a third of one.
    LD_RETURN_IF_ERROR(fill(kv.chunks, 0x35, kv.num_pages * kv.chunk_page_stride_bytes));
    LD_RETURN_IF_ERROR(fill(kv.residuals, 0x35, kv.num_pages * kv.residual_page_stride_bytes));
  }
  DecodeDesc decode;
  decode.method = keys == KeyEncoding::kPlain ? Method::kDense : Method::kFfd;
  decode.format = desc.format;
  decode.num_q_heads = kQHeads;
  decode.max_kv_len = desc.max_kv_len;
  LD_ASSIGN_OR_RETURN(DecodePlan plan, DecodePlan::create(decode, device_));
  plan_ = std::make_unique<DecodePlan>(std::move(plan));
  LD_RETURN_IF_ERROR(allocate(&workspace_, plan_->workspace_bytes() + 16));
  return plan_->init(workspace_.as<void>(), nullptr);
}

Status LayerChain::launch_layer(int32_t layer, Parts parts, cudaStream_t stream) {
  const Layer& weights = layers_[static_cast<size_t>(layer)];
  LinearArgs normed;
  normed.x_f32 = x_.as<float>();
  normed.norm_weight = norm_.as<float>();
  normed.norm_eps = 1e-5f;
  normed.num_cols = kHidden;
  LinearArgs qkv = normed;
  qkv.weight = weights.qkv.as<uint16_t>();
  qkv.y = qkv_.as<float>();
  qkv.num_rows = kQkvRows;
  LD_RETURN_IF_ERROR(cuda::linear(qkv, device_, stream));
  if (parts != Parts::kLinear) {
    cuda::RopeAppendArgs rope;
    rope.model = {kQHeads, kKvHeads, kHeadDim, kHeadDim, true, frequencies_.as<double>(),
                  nullptr, nullptr,  0.0f};
    rope.batch = cache_->step();
    rope.batch.query_lens = nullptr;  // the last token of the reserved ones
    rope.query_len = 1;
    rope.qkv = qkv_.as<float>();
    rope.q = q_.as<uint16_t>();
    rope.kv = cache_->layer(layer);
    LD_RETURN_IF_ERROR(cuda::rope_append(rope, device_, stream));
  }
  if (parts == Parts::kLayer || parts == Parts::kStep) {
    DecodeArgs decode;
    decode.q = TensorView::contiguous(q_.as<void>(), DType::kBF16, {1, 1, kQHeads, kHeadDim});
    decode.o = TensorView::contiguous(o_.as<void>(), DType::kBF16, {1, 1, kQHeads, kHeadDim});
    decode.kv = cache_->layer(layer);
    decode.batch = cache_->step();
    decode.batch.query_lens = nullptr;
    LD_RETURN_IF_ERROR(plan_->run(decode, stream));
  }
  LinearArgs o;
  o.weight = weights.o.as<uint16_t>();
  o.x_bf16 = o_.as<uint16_t>();
  o.output = LinearOutput::kAddF32;
  o.y = x_.as<float>();
  o.num_rows = kHidden;
  o.num_cols = kQHeads * kHeadDim;
  LD_RETURN_IF_ERROR(cuda::linear(o, device_, stream));
  LinearArgs gate_up = normed;
  gate_up.weight = weights.gate_up.as<uint16_t>();
  gate_up.output = LinearOutput::kSiluUpBf16;
  gate_up.y = act_.as<uint16_t>();
  gate_up.num_rows = 2 * kFfn;
  LD_RETURN_IF_ERROR(cuda::linear(gate_up, device_, stream));
  LinearArgs down = o;
  down.weight = weights.down.as<uint16_t>();
  down.x_bf16 = act_.as<uint16_t>();
  down.num_cols = kFfn;
  return cuda::linear(down, device_, stream);
}

Status LayerChain::launch(Parts parts, cudaStream_t stream) {
  if (parts == Parts::kStep) {
    LD_RETURN_IF_ERROR(cuda::embed(
        {ids_.as<int32_t>(), embedding_.as<uint16_t>(), x_.as<float>(), 1, kVocab, kHidden},
        device_, stream));
  }
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    LD_RETURN_IF_ERROR(launch_layer(layer, parts, stream));
  }
  if (parts != Parts::kStep) return {};
  LinearArgs head;
  head.weight = embedding_.as<uint16_t>();
  head.x_f32 = x_.as<float>();
  head.norm_weight = norm_.as<float>();
  head.norm_eps = 1e-5f;
  head.y = logits_.as<float>();
  head.num_rows = kVocab;
  head.num_cols = kHidden;
  LD_RETURN_IF_ERROR(cuda::linear(head, device_, stream));
  cuda::SampleArgs sample;
  sample.logits = logits_.as<float>();
  sample.batch = 1;
  sample.vocab_size = kVocab;
  sample.ids = ids_.as<int32_t>();
  sample.steps = steps_.as<int32_t>();
  return cuda::sample(sample, device_, stream);
}

}  // namespace longdecode::gpu_bench
