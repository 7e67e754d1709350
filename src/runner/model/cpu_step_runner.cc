#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <utility>
#include <vector>

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

  Status begin_batch(const SamplerOptions& sampler, std::span<const int32_t> banned) override {
    batch_sampler_ = sampler;
    banned_ = banned;
    return Status();
  }

  Result<int32_t> choose_first(const BatchMember& member, const float* logits,
                               StepTimes* times) override {
    SamplerOptions sampler = batch_sampler_;
    sampler.seed = member.seed;
    LD_ASSIGN_OR_RETURN(Sampler created, Sampler::create(sampler));
    samplers_.insert_or_assign(member.sequence, std::move(created));
    batch_logits_.assign(logits, logits + model_->config().vocab_size);
    return choose(member.sequence, times);
  }

  // One sequence after the other: there is no work that they could share.
  Status decode_batch(std::span<const BatchMember> members, int64_t max_steps, const OnRow& on_row,
                      StepTimes* times) override {
    std::vector<int32_t> row;
    for (const BatchMember& member : members) row.push_back(member.token);
    for (int64_t i = 0; i < max_steps; ++i) {
      for (size_t m = 0; m < members.size(); ++m) {
        const SequenceId sequence = members[m].sequence;
        LD_ASSIGN_OR_RETURN(const int64_t position, cache_->kv_len(sequence));
        LD_RETURN_IF_ERROR(
            run({{&row[m], 1}, position, true, batch_logits_.data(), times}, sequence));
        LD_ASSIGN_OR_RETURN(row[m], choose(sequence, times));
      }
      if (!on_row(row)) break;
    }
    return Status();
  }

  void end_batch() override {
    samplers_.clear();
    banned_ = {};
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

  // From batch_logits_.
  Result<int32_t> choose(SequenceId sequence, StepTimes* times) {
    Stopwatch watch;
    for (const int32_t token : banned_) {
      batch_logits_[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
    Result<int32_t> token = samplers_.at(sequence).sample(batch_logits_);
    watch.lap(&times->sampling_s);
    return token;
  }

  std::shared_ptr<const Model> model_;
  SessionOptions options_;
  KvCache* cache_;
  DecodeAttention decode_attention_;
  Transformer transformer_;
  // Of a batch.
  SamplerOptions batch_sampler_;
  std::span<const int32_t> banned_;
  std::map<SequenceId, Sampler> samplers_;
  std::vector<float> batch_logits_;  // [vocab_size]
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
