// The operations of a transformer's decode step and prefill on a CUDA device, apart from decode
// attention (longdecode/attention.h) and prefill attention (ops/backends.h).
//
// A layer of a decode step of 1..8 tokens; every line is one launch:
//   linear(x -> RMSNorm -> qkv (+ bias))
//   rope_append(qkv -> q, cache)
//   DecodePlan::run(q, cache -> o)
//   linear(o -> added to x)
//   linear(x -> RMSNorm -> silu(gate) * up)
//   linear(that -> added to x)
// then linear(x -> RMSNorm -> logits), sample(logits -> ids), embed(ids -> x) of the next step.
// Many tokens (prefill): rms_norm, Gemm::run, rope and KvCache::append, prefill_attention, silu_up.
//
// All pointers are device memory, contiguous and 16-byte aligned; bf16 is passed as its bits. A
// call validates its arguments and launches: it neither allocates nor waits, and may be captured in
// a CUDA Graph. Lengths and positions are read on the device, so a graph serves all of them.
// Launches of one stream overlap (programmatic dependent launch): a kernel may fetch weights, norm
// weights, biases and frequencies while the one before it still runs. Whoever writes those on
// the stream right before a call must do so by something that is no programmatic launch (a copy,
// an ordinary kernel): then the call waits for it.
#ifndef LONGDECODE_CUDA_MODEL_MODEL_OPS_H_
#define LONGDECODE_CUDA_MODEL_MODEL_OPS_H_

#include <cstdint>

#include "longdecode/attention.h"
#include "longdecode/status.h"
#include "longdecode/types.h"

namespace longdecode::cuda {

// kUnsupported where the operations do not run: they are compiled for Hopper (sm_90a) alone. They
// refuse the same.
Status check_model_device(const DeviceInfo& device);

// Most tokens of one `linear`, and query tokens of one sequence of `rope_append`.
inline constexpr int32_t kMaxLinearTokens = 8;

// x[t] = embedding[ids[t]]; an id outside 0 .. vocab_size - 1 gives a row of NaN.
struct EmbedArgs {
  const int32_t* ids = nullptr;         // [num_tokens]
  const uint16_t* embedding = nullptr;  // bf16 [vocab_size, hidden_dim]
  float* x = nullptr;                   // [num_tokens, hidden_dim], written
  int64_t num_tokens = 0;
  int32_t vocab_size = 0;
  int32_t hidden_dim = 0;  // a multiple of 8
};
Status embed(const EmbedArgs& args, const DeviceInfo& device, StreamHandle stream);

// What becomes of a product y = W x (+ bias), [num_tokens, num_rows].
enum class LinearOutput : int32_t {
  kStoreF32,    // float [num_tokens, num_rows]
  kStoreBf16,   // bf16 [num_tokens, num_rows]
  kAddF32,      // added to float [num_tokens, num_rows]
  kSiluUpBf16,  // bf16 [num_tokens, num_rows / 2]: silu(gate) * up, of interleaved rows
};

// Weight rows of a gate and an up projection, interleaved when the model is loaded: blocks of
// kGateBlock rows of gate, then the same rows of up. Row i of gate is row
// i / 8 * 16 + i % 8 of the whole, row i of up the one 8 further. ffn_dim is a multiple of 8.
inline constexpr int32_t kGateBlock = 8;

// Products of 1..8 tokens, reading W once. x is either bf16 as it is, or fp32 that is
// RMS-normalised on the way: x[c] / sqrt(mean(x^2) + eps) * norm_weight[c]. Both enter the product
// as bf16, sums are fp32. The bits of a token's result depend on neither num_tokens nor its
// neighbours.
struct LinearArgs {
  const uint16_t* weight = nullptr;    // bf16 [num_rows, num_cols]
  const float* bias = nullptr;         // [num_rows] or nullptr
  const uint16_t* x_bf16 = nullptr;    // [num_tokens, num_cols], or
  const float* x_f32 = nullptr;        // [num_tokens, num_cols], with
  const float* norm_weight = nullptr;  // [num_cols]
  float norm_eps = 0.0f;
  LinearOutput output = LinearOutput::kStoreF32;
  void* y = nullptr;     // as `output` says; overlaps nothing that is read
  int64_t num_rows = 0;  // kSiluUpBf16: a multiple of 16
  int64_t num_cols = 0;  // a multiple of 8
  int32_t num_tokens = 1;
};
// Normalised rows of more than 61440 columns are kUnsupported; more than that in all tokens
// together costs a second launch.
Status linear(const LinearArgs& args, const DeviceInfo& device, StreamHandle stream);

// What RoPE needs of a model: QK norms (before RoPE, over a head), the rotated pairs.
struct RopeModel {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;                 // a multiple of 8, at most 256
  int32_t rope_dim = 0;                 // channels of a head that are rotated, even, <= head_dim
  bool adjacent_pairs = false;          // pairs (2 i, 2 i + 1); else (i, i + rope_dim / 2)
  const double* frequencies = nullptr;  // device [rope_dim / 2], radians per position
  const float* q_norm = nullptr;        // device [head_dim] or nullptr
  const float* k_norm = nullptr;        // as q_norm
  float norm_eps = 0.0f;
};

// Rotates the tokens of a step: token t of sequence b sits at position
// batch.kv_lens[b] - new_b + t, new_b = batch.query_lens ? batch.query_lens[b] : query_len; rows of
// tokens from new_b on are left alone. The batch needs kv_lens and, where ragged, query_lens.
struct RopeArgs {
  RopeModel model;
  BatchView batch;
  int32_t query_len = 0;
  // [batch, query_len, (num_q_heads + 2 num_kv_heads) * head_dim]: q, k, v, biases included
  const float* qkv = nullptr;
  uint16_t* q = nullptr;  // bf16 [batch, query_len, num_q_heads, head_dim]
  uint16_t* k = nullptr;  // bf16 [batch, query_len, num_kv_heads, head_dim]
  uint16_t* v = nullptr;  // as k
};
Status rope(const RopeArgs& args, const DeviceInfo& device, StreamHandle stream);

// rope and KvCache::append of a layer in one launch, pages that become due included: for a step of
// at most kMaxLinearTokens tokens a sequence. The caller says KvCache::mark_appended.
struct RopeAppendArgs {
  RopeModel model;
  BatchView batch;  // KvCache::step()
  int32_t query_len = 0;
  const float* qkv = nullptr;  // as in RopeArgs
  uint16_t* q = nullptr;       // as in RopeArgs
  KvLayerView kv;              // KvCache::layer(); bf16, plain or two-plane
};
Status rope_append(const RopeAppendArgs& args, const DeviceInfo& device, StreamHandle stream);

// Chooses the next token of each sequence: the largest logit, the lowest id on ties, when
// temperature is 0; else as runner/sampler/sampler.h (top_k, then top_p, then temperature) with a
// random number that is a function of (seeds[sequence], steps[sequence]) alone. NaN counts as
// -infinity; where no logit is above it the token is -1.
struct SampleArgs {
  const float* logits = nullptr;  // [batch, vocab_size]
  int32_t batch = 0;
  int32_t vocab_size = 0;  // at most 400000
  float temperature = 0.0f;
  int32_t top_k = 0;  // 0: all
  float top_p = 1.0f;
  const uint64_t* seeds = nullptr;  // [batch]; not read when temperature is 0
  int32_t* ids = nullptr;           // [batch], written: the input of the next step's embed
  int32_t* steps = nullptr;         // [batch], each incremented by one
  // A ring [history_steps, batch] or nullptr: row steps[sequence] (before the increment) modulo
  // history_steps gets the token.
  int32_t* history = nullptr;
  int32_t history_steps = 0;  // 1 or more where there is a history
};
Status sample(const SampleArgs& args, const DeviceInfo& device, StreamHandle stream);

// --- Many tokens ---

// out[t] = RMSNorm(x[t]); hidden_dim a multiple of 8.
struct RmsNormArgs {
  const float* x = nullptr;       // [num_tokens, hidden_dim]
  const float* weight = nullptr;  // [hidden_dim]
  float eps = 0.0f;
  uint16_t* out = nullptr;  // bf16 [num_tokens, hidden_dim]
  int64_t num_tokens = 0;
  int32_t hidden_dim = 0;
};
Status rms_norm(const RmsNormArgs& args, const DeviceInfo& device, StreamHandle stream);

// out = silu(gate) * up of a product with interleaved rows.
struct SiluUpArgs {
  const uint16_t* gate_up = nullptr;  // bf16 [num_tokens, 2 * ffn_dim], interleaved (kGateBlock)
  uint16_t* out = nullptr;            // bf16 [num_tokens, ffn_dim]
  int64_t num_tokens = 0;
  int32_t ffn_dim = 0;  // a multiple of 8
};
Status silu_up(const SiluUpArgs& args, const DeviceInfo& device, StreamHandle stream);

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_MODEL_MODEL_OPS_H_
