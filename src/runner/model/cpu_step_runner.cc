#include <algorithm>
#include <new>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "ops/backends.h"
#include "runner/model/decode_attention.h"
#include "runner/model/step_runner.h"
#include "runner/model/stopwatch.h"
#include "runner/model/transformer.h"

namespace longdecode::runner {
namespace {

class CpuStepRunner final : public StepRunner {
 public:
  CpuStepRunner(std::shared_ptr<const Model> model, const SessionOptions& options, KvCache* cache,
                DecodeAttention decode_attention, Transformer transformer)
      : model_(std::move(model)),
        options_(options),
        cache_(cache),
        decode_attention_(std::move(decode_attention)),
        transformer_(std::move(transformer)) {}

  Status run(const ModelStep& step, SequenceId sequence) override {
    const double linear_before = transformer_.linear_s();
    const auto new_tokens = static_cast<int32_t>(step.tokens.size());
    LD_RETURN_IF_ERROR(cache_->reserve({&sequence, 1}, {&new_tokens, 1}));
    LD_RETURN_IF_ERROR(transformer_.run(
        step.tokens, step.first_position,
        [&](const AttentionStep& layer) { return attend(layer, step); }, step.logits));
    LD_RETURN_IF_ERROR(cache_->commit());
    step.times->linear_s += transformer_.linear_s() - linear_before;
    if (step.is_decode) decode_attention_.count_step();
    return Status();
  }

  void fill(SessionStats* stats) const override { decode_attention_.fill(stats); }
  std::string kernel_name() const override { return decode_attention_.kernel_name(); }

 private:
  Status attend(const AttentionStep& layer, const ModelStep& step) {
    const ModelConfig& config = model_->config();
    const auto view = [&](float* data, int32_t num_heads) {
      return TensorView::contiguous(data, DType::kF32,
                                    {1, layer.num_tokens, num_heads, config.head_dim});
    };
    if (options_.observer) {
      LD_RETURN_IF_ERROR(options_.observer(
          {layer.layer_idx, step.first_position, layer.num_tokens, layer.q, layer.k, layer.v}));
    }
    Stopwatch watch;
    LD_RETURN_IF_ERROR(cache_->append(layer.layer_idx, view(layer.k, config.num_kv_heads),
                                      view(layer.v, config.num_kv_heads), nullptr));
    watch.lap(&step.times->append_s);
    const Status status =
        step.is_decode ? decode_attention_.run(layer.layer_idx, view(layer.q, config.num_q_heads),
                                               view(layer.o, config.num_q_heads),
                                               cache_->layer(layer.layer_idx), cache_->step())
                       : prefill_attend(layer);
    watch.lap(&step.times->attention_s);
    return status;
  }

  Status prefill_attend(const AttentionStep& layer) const {
    const ModelConfig& config = model_->config();
    PrefillArgs args;
    args.q = TensorView::contiguous(layer.q, DType::kF32,
                                    {layer.num_tokens, config.num_q_heads, config.head_dim});
    args.o = args.q;
    args.o.data = layer.o;
    args.kv = cache_->layer(layer.layer_idx);
    args.batch = cache_->step();
    args.softmax_scale = config.softmax_scale();
    return prefill_attention(args, options_.device, nullptr);
  }

  std::shared_ptr<const Model> model_;
  SessionOptions options_;
  KvCache* cache_;
  DecodeAttention decode_attention_;
  Transformer transformer_;
};

}  // namespace

Result<Generation> StepRunner::generate(const GenerateRequest&, SequenceId, float*) {
  return unsupported("generate: the device of this session does not choose tokens itself");
}

Result<std::unique_ptr<StepRunner>> make_cpu_step_runner(std::shared_ptr<const Model> model,
                                                         const SessionOptions& options,
                                                         KvCache* cache) {
  const ModelConfig& config = model->config();
  const int64_t max_tokens = std::min<int64_t>(options.prefill_chunk, options.context_len);
  try {
    LD_ASSIGN_OR_RETURN(DecodeAttention decode_attention,
                        DecodeAttention::create(config, options, cache->desc().format));
    LD_ASSIGN_OR_RETURN(
        Transformer transformer,
        Transformer::create(config, model->weights(), max_tokens, options.device.num_threads));
    return std::unique_ptr<StepRunner>(new CpuStepRunner(
        std::move(model), options, cache, std::move(decode_attention), std::move(transformer)));
  } catch (const std::bad_alloc&) {
    return out_of_memory("activations for prefill_chunk {} do not fit", max_tokens);
  }
}

}  // namespace longdecode::runner
