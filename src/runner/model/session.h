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

namespace longdecode::runner {

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

struct SessionOptions {
  Method method = Method::kDense;
  FfdOptions ffd;                        // used when method is kFfd
  std::vector<int32_t> dense_layers;     // kFfd: layers that attend every stored key
  std::vector<LayerDelta> layer_deltas;  // kFfd: of other layers than dense_layers, each once
  int64_t context_len = 0;               // tokens of room, 1 .. the model's; 0: the model's
  DType kv_dtype = DType::kF16;          // of plain keys, recent keys and V
  int32_t page_size = 128;               // tokens; kFfd: 64 or 128
  int32_t prefill_chunk = 512;           // most tokens per prefill step, >= 1
  DeviceInfo device;                     // of detect_device; the CPU
  // Called for every layer of every step, before its attention; an error ends the step. May be
  // empty.
  std::function<Status(const LayerTensors&)> observer;
};

// Where the seconds of a kind of step went. The rest is what no other member names.
struct StepTimes {
  double linear_s = 0.0;
  double attention_s = 0.0;
  double append_s = 0.0;
  double total_s = 0.0;
  double rest_s() const { return total_s - linear_s - attention_s - append_s; }
};

struct SessionStats {
  int64_t decode_steps = 0;
  double kept_fraction = 1.0;            // mean over kv heads, layers and decode steps; 1 for dense
  int64_t kv_bytes = 0;                  // pages (and rings) that hold tokens now, all layers
  double kv_bytes_read_per_token = 0.0;  // mean over decode steps, sum over layers
  StepTimes prefill_times;
  StepTimes decode_times;
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
