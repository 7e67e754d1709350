// A model file and sequences of tokens run through it.
//
//   auto model = Model::load("model.gguf");
//   auto session = Session::create(*model, options);
//   session->prefill(prompt, nullptr);
//   int32_t token = pick(session->logits());
//   session->decode(token);                    // and so on
#ifndef LONGDECODE_RUNNER_MODEL_SESSION_H_
#define LONGDECODE_RUNNER_MODEL_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "longdecode/attention.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"
#include "longdecode/types.h"
#include "runner/gguf/gguf_file.h"
#include "runner/model/config.h"
#include "runner/sampler/sampler.h"

namespace longdecode::runner {

struct BatchRequest;
struct ModelWeights;

// The weights, memory-mapped and read-only; shared by any number of sessions.
class Model {
 public:
  // Checks metadata and every tensor's presence, shape and type. kNotFound, kDataLoss,
  // kUnsupported or kInvalidArgument; the message names the file and the key or tensor at fault.
  static Result<std::shared_ptr<const Model>> load(const std::string& path);
  // The same for a file object that is there already.
  static Result<std::shared_ptr<const Model>> from_file(GgufFile file);
  ~Model();

  const GgufFile& file() const;
  const ModelConfig& config() const;
  const ModelWeights& weights() const;
  int64_t weight_bytes() const;  // of all tensors

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The delta of one layer in place of FfdOptions::delta; infinity attends every stored key without
// a scan, as dense_layers does.
struct LayerDelta {
  int32_t layer_idx = 0;
  float delta = 0.0f;  // nats, >= 0
};

// One layer's tensors of a step, after RoPE, as attention gets them. fp32, contiguous, valid during
// the call.
struct LayerTensors {
  int32_t layer_idx = 0;
  int64_t first_token = 0;  // position of the step's first token
  int64_t num_tokens = 0;
  const float* q = nullptr;  // [num_tokens, num_q_heads, head_dim]
  const float* k = nullptr;  // [num_tokens, num_kv_heads, head_dim]
  const float* v = nullptr;  // as k
};

// CUDA: how decode steps reach the device.
enum class GraphMode : int32_t {
  kOff,        // kernel by kernel
  kBlock,      // a CUDA Graph, captured anew when the sequence enters a new block of context
  kAnyLength,  // one CUDA Graph for all lengths, which the device counts
};

// Sequences that a CUDA device decodes together.
inline constexpr int32_t kMaxCudaBatch = 8;

struct SessionOptions {
  Method method = Method::kDense;
  FfdOptions ffd;                           // used when method is kFfd
  std::vector<int32_t> dense_layers;        // kFfd: layers that attend every stored key
  std::vector<LayerDelta> layer_deltas;     // kFfd: of other layers than dense_layers, each once
  int64_t context_len = 0;                  // tokens of room, 1 .. the model's; 0: the model's
  DType kv_dtype = DType::kF16;             // of plain keys, recent keys and V; CUDA: bf16
  int32_t page_size = 128;                  // tokens; kFfd: 64 or 128
  int32_t prefill_chunk = 512;              // most tokens per prefill step, >= 1
  int32_t max_batch = 1;                    // of generate_batch, >= 1; CUDA: up to kMaxCudaBatch
  int64_t num_pages = 0;                    // of the cache; 0: max_batch * context_len tokens
  DeviceInfo device;                        // of detect_device
  GraphMode graph = GraphMode::kAnyLength;  // CUDA
  // Called for every layer of every step, before its attention; an error ends the step. May be
  // empty. The CPU only.
  std::function<Status(const LayerTensors&)> observer;
  // CUDA: called with the bytes of weights that are on the device and their total. May be empty.
  std::function<void(int64_t done, int64_t total)> upload_progress;
};

// Where the seconds of a kind of step went. The rest is what no other member names.
struct StepTimes {
  double linear_s = 0.0;
  double attention_s = 0.0;
  double append_s = 0.0;
  double sampling_s = 0.0;  // generate_batch on the CPU
  double total_s = 0.0;
};

// CUDA Graphs of a session's decode steps.
struct GraphStats {
  int64_t num_captures = 0;
  int64_t num_nodes = 0;  // of the last one captured
  int64_t num_replays = 0;
  double capture_s = 0.0;  // sums
  double instantiate_s = 0.0;
  double launch_s = 0.0;  // of replays, on the host
};

struct SessionStats {
  int64_t decode_steps = 0;
  double kept_fraction = 1.0;            // mean over kv heads, layers and decode steps; 1 for dense
  int64_t kv_bytes = 0;                  // pages (and rings) that hold tokens now, all layers
  double kv_bytes_read_per_token = 0.0;  // mean over decode steps, sum over layers
  StepTimes prefill_times;
  StepTimes decode_times;
  GraphStats graph;
};

// What becomes of a token that was generated.
enum class TokenVerdict {
  kContinue,
  kStop,         // it is the last one
  kStopAndDrop,  // the one before it was the last one
};

struct GenerateRequest {
  SamplerOptions sampler;
  std::span<const int32_t> banned;                      // tokens that are never chosen
  int64_t max_tokens = 1;                               // 1 or more; the last of so many is not fed
  std::function<TokenVerdict(int32_t token)> on_token;  // called in order; not empty
};

// One sequence. Not for concurrent use; a call that fails leaves the tokens as they were, except
// that a failing prefill keeps the chunks it has finished.
class Session {
 public:
  static Result<Session> create(std::shared_ptr<const Model> model, const SessionOptions& options);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Appends tokens to the sequence, in chunks. `progress` (may be empty) is called after each chunk
  // with the tokens of this call that are done and their total. kInvalidArgument for no tokens, an
  // id outside the vocabulary (checked first) or more tokens than there is room for.
  Status prefill(std::span<const int32_t> tokens,
                 const std::function<void(int64_t done, int64_t total)>& progress);

  // Appends one token through the decode kernel of the session's method.
  Status decode(int32_t token);

  // Whether the device chooses tokens itself: generate.
  bool generates() const;
  // Chooses tokens after the last one and feeds each to the next step, without a wait between: the
  // device is a step ahead of on_token. Returns how many were fed. As decode for each token;
  // kUnsupported where generates() is false. A seed gives other tokens than runner::Sampler.
  Result<int64_t> generate(const GenerateRequest& request);

  // Continues prompts, as runner/model/batch.h says; max_batch of them are decoded together. The
  // session's own sequence is empty afterwards.
  Status generate_batch(const BatchRequest& request);

  // Of the last token: fp32 [vocab_size], valid until the next call; empty before the first.
  std::span<const float> logits() const;

  // For who keeps sequences elsewhere (runner/prompt_cache). The cache's step() names the pages and
  // the slot of the sequence as long as that has tokens.
  const KvCache& cache() const;
  // Replaces the sequence by one of num_tokens tokens: `fill` writes what the cache holds of them
  // to the pages of cache().step(), `logits` are the last token's. num_tokens 0 just empties it.
  // The sequence is empty when this fails.
  Status restore(int64_t num_tokens, std::span<const float> logits,
                 const std::function<Status()>& fill);

  int64_t num_tokens() const;
  SessionStats stats() const;
  const SessionOptions& options() const;  // with context_len resolved
  // "cpu/gqa_decode avx512" and the like: what decode steps run on.
  std::string kernel_name() const;

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_SESSION_H_
