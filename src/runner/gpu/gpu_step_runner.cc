#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/host/status.h"
#include "cuda/model/model_ops.h"
#include "runner/gpu/decode_loop.h"
#include "runner/gpu/device_weights.h"
#include "runner/gpu/gpu_decoder.h"
#include "runner/gpu/step_graphs.h"
#include "runner/model/step_runner.h"

namespace longdecode::runner {
namespace {

using cuda::cuda_status;

class GpuStepRunner final : public StepRunner {
 public:
  GpuStepRunner(std::shared_ptr<const Model> model, const SessionOptions& options, KvCache* cache)
      : model_(std::move(model)), options_(options), cache_(cache) {}

  ~GpuStepRunner() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    loop_.reset();
    graphs_.reset();
    decoder_.reset();
    cudaFreeHost(host_logits_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status init() {
    const ModelConfig& config = model_->config();
    const cuda::DeviceGuard guard(options_.device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    // An ordinary stream: copies of the default stream, as those of a prompt cache, wait for it.
    LD_RETURN_IF_ERROR(cuda_status(cudaStreamCreate(&stream_), "cudaStreamCreate"));
    LD_RETURN_IF_ERROR(cache_->set_stream(stream_));
    LD_ASSIGN_OR_RETURN(weights_,
                        upload_weights(*model_, options_.device, options_.upload_progress));
    GpuDecoderLimits limits;
    limits.max_batch = options_.max_batch;
    limits.wants_stats = options_.method == Method::kFfd;
    LD_ASSIGN_OR_RETURN(decoder_, GpuDecoder::create(config, weights_, options_,
                                                     cache_->desc().format, limits, stream_));
    graphs_ = std::make_unique<StepGraphs>(options_.graph, stream_);
    LD_ASSIGN_OR_RETURN(loop_, DecodeLoop::create(decoder_.get(), graphs_.get(), cache_));
    return cuda_status(
        cudaHostAlloc(reinterpret_cast<void**>(&host_logits_), 4 * size_t(config.vocab_size), 0),
        "cudaHostAlloc of logits");
  }

  Status run(const ModelStep& step, SequenceId sequence) override {
    const cuda::DeviceGuard guard(options_.device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    if (step.is_decode) {
      LD_RETURN_IF_ERROR(loop_->step({&sequence, 1}, step.tokens));
      count_steps(step.first_position, 1);
    } else {
      LD_RETURN_IF_ERROR(prefill(step, sequence));
    }
    if (step.logits != nullptr) LD_RETURN_IF_ERROR(read_logits(step.logits));
    return cuda_status(cudaStreamSynchronize(stream_), "a step of the model");
  }

  bool generates() const override { return true; }

  Result<Generation> generate(const GenerateRequest& request, SequenceId sequence,
                              float* logits) override {
    const cuda::DeviceGuard guard(options_.device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    LD_ASSIGN_OR_RETURN(const int64_t first_position, cache_->kv_len(sequence));
    LD_RETURN_IF_ERROR(write_logits(logits, request.banned));
    if (!request.banned.empty()) LD_RETURN_IF_ERROR(decoder_->ban(request.banned));
    DecodeLoopRequest loop;
    loop.sampler = request.sampler;
    loop.seeds = {&request.sampler.seed, 1};
    loop.max_steps = request.max_tokens - 1;
    loop.on_tokens = [&](std::span<const int32_t> row) { return request.on_token(row[0]); };
    LD_ASSIGN_OR_RETURN(const DecodeLoopResult result, loop_->run({&sequence, 1}, loop));
    count_steps(first_position, result.num_steps);
    if (!request.banned.empty()) LD_RETURN_IF_ERROR(decoder_->ban({}));
    if (result.num_steps > 0 && !result.logits_are_later) {
      if (!request.banned.empty()) LD_RETURN_IF_ERROR(decoder_->enqueue_logits(1));
      LD_RETURN_IF_ERROR(read_logits(logits));
    }
    return Generation{result.num_steps, result.logits_are_later};
  }

  Status begin_batch(const SamplerOptions& sampler, std::span<const int32_t> banned) override {
    const cuda::DeviceGuard guard(options_.device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    batch_sampler_ = sampler;
    return decoder_->ban(banned);
  }

  // The prefill has left the logits, banned tokens among them, on the device, too.
  Result<int32_t> choose_first(const BatchMember& member, const float*, StepTimes*) override {
    const cuda::DeviceGuard guard(options_.device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    int32_t first = -1;
    DecodeLoopRequest loop;
    loop.sampler = batch_sampler_;
    loop.seeds = {&member.seed, 1};
    loop.on_tokens = [&](std::span<const int32_t> row) {
      first = row[0];
      return TokenVerdict::kContinue;
    };
    LD_RETURN_IF_ERROR(loop_->run({&member.sequence, 1}, loop).status());
    return first;
  }

  Status decode_batch(std::span<const BatchMember> members, int64_t max_steps, const OnRow& on_row,
                      StepTimes*) override {
    const cuda::DeviceGuard guard(options_.device.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    std::vector<SequenceId> sequences;
    std::vector<uint64_t> seeds;
    std::vector<int32_t> ids;
    std::vector<int64_t> first_positions;
    for (const BatchMember& member : members) {
      sequences.push_back(member.sequence);
      seeds.push_back(member.seed);
      ids.push_back(member.token);
      LD_ASSIGN_OR_RETURN(const int64_t kv_len, cache_->kv_len(member.sequence));
      first_positions.push_back(kv_len);
    }
    LD_RETURN_IF_ERROR(decoder_->set_ids(ids));
    DecodeLoopRequest loop;
    loop.sampler = batch_sampler_;
    loop.seeds = seeds;
    loop.max_steps = max_steps;
    loop.samples_first = false;
    loop.keeps_later_tokens = true;
    loop.on_tokens = [&](std::span<const int32_t> row) {
      return on_row(row) ? TokenVerdict::kContinue : TokenVerdict::kStop;
    };
    LD_ASSIGN_OR_RETURN(const DecodeLoopResult result, loop_->run(sequences, loop));
    for (const int64_t position : first_positions) count_steps(position, result.num_steps);
    return Status();
  }

  void end_batch() override {
    const cuda::DeviceGuard guard(options_.device.device_idx);
    (void)decoder_->ban({});  // fails where the device has failed before
  }

  void fill(SessionStats* stats) const override {
    stats->decode_steps = num_steps_;
    stats->graph = graphs_->stats();
    if (num_steps_ == 0) return;
    const auto steps = static_cast<double>(num_steps_);
    stats->kv_bytes_read_per_token = dense_bytes_ / steps;
    if (options_.method == Method::kDense) return;
    const Result<GpuDecodeSums> sums = decoder_->sums();
    if (!sums.ok()) return;
    stats->kept_fraction = sums->kept / sums->tokens;
    stats->kv_bytes_read_per_token = sums->bytes / sums->tokens;
  }

  std::string kernel_name() const override { return decoder_->kernel_name(); }

 private:
  Status prefill(const ModelStep& step, SequenceId sequence) {
    const auto count = static_cast<int32_t>(step.tokens.size());
    LD_RETURN_IF_ERROR(cache_->reserve({&sequence, 1}, {&count, 1}));
    LD_RETURN_IF_ERROR(decoder_->set_ids(step.tokens));
    LD_RETURN_IF_ERROR(
        decoder_->enqueue_prefill(cache_, step.first_position, count, step.logits != nullptr));
    return cache_->commit();
  }

  // What the first token is chosen from: a restored sequence has its logits on the host alone.
  Status write_logits(const float* logits, std::span<const int32_t> banned) {
    std::copy_n(logits, model_->config().vocab_size, host_logits_);
    for (const int32_t token : banned) {
      host_logits_[token] = -std::numeric_limits<float>::infinity();
    }
    return decoder_->set_logits(host_logits_);
  }

  Status read_logits(float* logits) {
    const size_t num_bytes = 4 * static_cast<size_t>(model_->config().vocab_size);
    LD_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(host_logits_, decoder_->logits(), num_bytes,
                                                   cudaMemcpyDeviceToHost, stream_),
                                   "cudaMemcpyAsync of logits"));
    LD_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream_), "a step of the model"));
    std::copy_n(host_logits_, model_->config().vocab_size, logits);
    return Status();
  }

  // A dense step reads every token, its own included.
  void count_steps(int64_t first_position, int64_t count) {
    const double token_bytes =
        cache_->desc().format.bytes_per_token() * model_->config().num_layers;
    const auto steps = static_cast<double>(count);
    dense_bytes_ +=
        token_bytes * steps * (static_cast<double>(first_position) + (steps + 1.0) / 2.0);
    num_steps_ += count;
  }

  std::shared_ptr<const Model> model_;
  SessionOptions options_;
  KvCache* cache_;
  cudaStream_t stream_ = nullptr;
  DeviceWeights weights_;
  std::unique_ptr<GpuDecoder> decoder_;
  std::unique_ptr<StepGraphs> graphs_;
  std::unique_ptr<DecodeLoop> loop_;
  float* host_logits_ = nullptr;  // pinned
  int64_t num_steps_ = 0;
  double dense_bytes_ = 0.0;  // of all decode steps
  SamplerOptions batch_sampler_;
};

}  // namespace

Status check_gpu_model(const ModelConfig& config, const SessionOptions& options,
                       const KvFormat& format) {
  LD_RETURN_IF_ERROR(cuda::check_model_device(options.device));
  LayerPlanShape shape;
  shape.q_dtype = DType::kBF16;
  shape.max_batch = options.max_batch;
  return LayerPlans::check(config, options, format, shape);
}

Result<std::unique_ptr<StepRunner>> make_gpu_step_runner(std::shared_ptr<const Model> model,
                                                         const SessionOptions& options,
                                                         KvCache* cache) {
  auto runner = std::make_unique<GpuStepRunner>(std::move(model), options, cache);
  LD_RETURN_IF_ERROR(runner->init());
  return std::unique_ptr<StepRunner>(std::move(runner));
}

}  // namespace longdecode::runner
