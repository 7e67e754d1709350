// The layers of a model on a CUDA device. Everything here only enqueues on the decoder's stream.
#ifndef LONGDECODE_RUNNER_GPU_GPU_DECODER_H_
#define LONGDECODE_RUNNER_GPU_GPU_DECODER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cache/device_buffer.h"
#include "cuda/model/model_ops.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "runner/gpu/device_weights.h"
#include "runner/gpu/gpu_prefill.h"
#include "runner/model/config.h"
#include "runner/model/layer_plans.h"
#include "runner/model/session.h"
#include "runner/sampler/sampler.h"

namespace longdecode::runner {

// What of a step is enqueued: all of it, or a part to be timed alone.
enum StepParts : unsigned {
  kWeightParts = 1,     // products with weights
  kAttentionParts = 2,  // decode attention
  kOtherParts = 4,      // embedding, RoPE, append, sampling
  kAllParts = 7,
};

struct GpuDecoderLimits {
  int32_t max_batch = 1;     // sequences of a decode step: 1..kMaxCudaBatch
  bool wants_stats = false;  // kept tokens and bytes read, summed on the device
};

// Sums over the tokens of all decode steps so far.
struct GpuDecodeSums {
  double kept = 0.0;  // means over layers and kv heads
  double bytes = 0.0;
  double tokens = 0.0;
};

// Tokens of a sequence that the history holds; more than the host is behind.
inline constexpr int32_t kHistorySteps = 64;

// Not for concurrent use.
class GpuDecoder {
 public:
  using Pointer = std::unique_ptr<GpuDecoder>;

  // config and weights outlive the object; options are resolved; format is the cache's.
  static Result<Pointer> create(const ModelConfig& config, const DeviceWeights& weights,
                                const SessionOptions& options, const KvFormat& format,
                                const GpuDecoderLimits& limits, cudaStream_t stream);
  ~GpuDecoder();
  GpuDecoder(const GpuDecoder&) = delete;
  GpuDecoder& operator=(const GpuDecoder&) = delete;

  // Host to device: the tokens that the next step is fed with, and the lengths that it has, its
  // own tokens included.
  Status set_ids(std::span<const int32_t> ids);
  Status set_kv_lens(std::span<const int32_t> kv_lens);
  // Of the sequences whose tokens are sampled from now on: the position of the next token, which
  // every sample counts on, and the seed.
  Status set_positions(std::span<const int32_t> positions);
  Status set_seeds(std::span<const uint64_t> seeds);
  // Adds -infinity to the logits of these tokens from now on; graphs captured before stay right.
  Status ban(std::span<const int32_t> tokens);

  // One token of each sequence of the cache's reserved step, the ids fed in, to logits
  // [batch, vocab_size]. Lengths are the decoder's own.
  Status enqueue_decode(const KvCache& cache, unsigned parts);
  // Chooses the next ids from the logits, and puts them into the history. The seed is that of
  // set_seeds.
  Status enqueue_sample(int32_t batch, const SamplerOptions& options);
  // Adds what the step reported to the sums and one token to every length.
  Status enqueue_end(int32_t batch);
  // The first `count` ids of set_ids, tokens of the only sequence of the reserved step, with
  // first_position tokens before them, written to every layer; the last one's logits on request.
  Status enqueue_prefill(KvCache* cache, int64_t first_position, int64_t count, bool wants_logits);

  // Logits of the last step's tokens again: after ban.
  Status enqueue_logits(int32_t batch) { return enqueue_logits(x(), batch); }
  // Of one sequence, from the host.
  Status set_logits(const float* logits);
  const float* logits() const { return logits_.as<float>(); }
  // The token that a batch's sample chose for sequence b at a position, on the host; valid until
  // kHistorySteps later ones or one of another batch size are chosen.
  int32_t chosen(int32_t batch, int32_t b, int64_t position) const {
    return history_[position % kHistorySteps * batch + b];
  }

  // Attention reads these queries, bf16 [num_layers, batch, num_q_heads, head_dim] on the device,
  // in place of the model's; nullptr ends that. For benchmarks whose kept share is planted.
  void set_planted_queries(const uint16_t* queries) { planted_q_ = queries; }

  Result<GpuDecodeSums> sums();
  int64_t memory_bytes() const { return memory_bytes_; }
  std::string kernel_name() const { return plans_.kernel_name(); }
  const ModelConfig& config() const { return config_; }
  const DeviceWeights& weights() const { return weights_; }
  cudaStream_t stream() const { return stream_; }

 private:
  GpuDecoder(const ModelConfig& config, const DeviceWeights& weights, const DeviceInfo& device,
             LayerPlans plans, BoundPlan prefill_plan, const GpuDecoderLimits& limits,
             cudaStream_t stream);
  Status allocate(int64_t max_tokens);
  // Tokens of some sequences that go through the layers together, at most kMaxCudaBatch.
  struct Slice {
    BatchView batch;
    int32_t query_len = 1;
    const int32_t* ids = nullptr;
    bool is_prefill = false;  // dense attention to the stored keys
    unsigned parts = kAllParts;
  };
  Status enqueue_slices(const KvCache& cache, int64_t first_position, int64_t count);
  Status enqueue_layers(const Slice& slice, const KvCache& cache);
  Status enqueue_attention(const Slice& slice, int32_t layer_idx, const KvCache& cache);
  Status enqueue_ffn(const DeviceLayer& layer, int32_t num_tokens);
  Status enqueue_logits(const float* x, int32_t num_tokens);
  float* x() const { return x_.as<float>(); }

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  DeviceInfo device_;
  LayerPlans plans_;
  BoundPlan prefill_plan_;
  GpuDecoderLimits limits_;
  cudaStream_t stream_;
  int64_t memory_bytes_ = 0;

  DeviceBuffer ids_;          // int32 [max_tokens]
  DeviceBuffer slice_lens_;   // int32: lengths of a prefill's slices
  DeviceBuffer kv_lens_;      // int32 [max_batch]
  DeviceBuffer positions_;    // int32 [max_batch]
  DeviceBuffer seeds_;        // uint64 [max_batch]
  DeviceBuffer x_;            // fp32 [tokens, hidden_dim]
  DeviceBuffer qkv_;          // fp32 [tokens, q_dim + 2 kv_dim]
  DeviceBuffer q_;            // bf16 [tokens, q_dim]
  DeviceBuffer o_;            // bf16 [tokens, q_dim]
  DeviceBuffer activations_;  // bf16 [tokens, ffn_dim]
  DeviceBuffer logits_;       // fp32 [max_batch, vocab_size]
  DeviceBuffer logit_bias_;   // fp32 [vocab_size]: 0, or -infinity
  DeviceBuffer stats_;        // int64 [2, num_layers, max_batch, num_kv_heads]: attended, bytes
  DeviceBuffer sums_;         // GpuDecodeSums
  std::unique_ptr<GpuPrefill> prefill_;  // nullptr: chunks are too short for it
  int32_t* history_ = nullptr;           // [kHistorySteps, batch] in pinned host memory
  const uint16_t* planted_q_ = nullptr;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_GPU_GPU_DECODER_H_
