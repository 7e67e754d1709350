// Decode attention: descriptor -> plan -> run. The same calls and semantics on CPU and CUDA.
//
//   DecodeDesc desc;                         // shapes, formats, limits, options
//   auto plan = DecodePlan::create(desc, device);
//   plan->init(workspace, stream);           // once; plan->workspace_bytes() bytes
//   plan->run(args, stream);                 // every step; no allocation, no synchronisation
//
// Maths (per query head i, tokens j): s_ij = softmax_scale * q_i . k_j, capped to
// soft_cap * tanh(s / soft_cap) if soft_cap > 0, o_i = sum_j softmax(s_i)_j v_j,
// lse_i = ln sum_j exp(s_ij) (Milakov & Gimelshein 2018, online softmax; FlashDecoding for splits).
// Where nothing is visible (kv_len 0, padding rows): o = 0, lse = -infinity.
#ifndef LONGDECODE_ATTENTION_H_
#define LONGDECODE_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "longdecode/export.h"
#include "longdecode/kv_format.h"
#include "longdecode/status.h"
#include "longdecode/tensor.h"
#include "longdecode/types.h"

namespace longdecode {

// Options of the top-delta selection (FFD). Sink tokens, recent tokens and every token that is not
// yet quantised are always attended exactly; their largest exact score is the pseudo-max m~. Token
// j is a candidate when its 2-bit score + margin >= m~ - delta; a 16-token tile that holds a sink,
// a recent token or a candidate (of any head of the group, any query token) is attended exactly.
struct FfdOptions {
  float delta = 5.0f;  // nats, >= 0; infinity keeps every token
  // >= 0; margin = this * standard deviation of the 2-bit noise. 0.5 halves the tiles that the
  // noise drops although exact scores keep them (docs/adr/0007-key-format.md).
  float margin_sigmas = 0.5f;
  bool certified = false;       // worst-case margin: no token with s >= m~ - delta is missed
  int32_t sink_tokens = 128;    // >= 0, the first tokens of the sequence
  int32_t recent_tokens = 128;  // >= 0, counted back from each query token's own position
};

struct DecodeDesc {
  Method method = Method::kDense;
  KvFormat format;
  DType q_dtype = DType::kBF16;  // of Q and O
  int32_t num_q_heads = 32;      // a multiple of format.num_kv_heads, at most 128 (MLA) or 16 per
                                 // kv head (GQA)
  int32_t max_batch = 1;         // 1..2^20
  int32_t max_query_len = 1;     // 1..kMaxQueryLen
  int64_t max_kv_len = 0;        // tokens, 1..2^31 - 1; kernels on CUDA: up to 2^30
  float softmax_scale = 0.0f;    // 0: 1 / sqrt(head_dim) for GQA; must be given for MLA
  float soft_cap = 0.0f;         // 0: off; applied before the mask and before selection
  int64_t sliding_window = 0;    // 0: off; else a query at position p sees j > p - sliding_window
  bool learned_sinks = false;    // args.sink_logits enter the denominator and the lse exactly once
  bool causal = true;            // query token t sits at position kv_len - query_len + t
  FfdOptions ffd;                // used when method is kFfd
  bool batch_invariant = false;  // a sequence's bits do not depend on its neighbours
};

// One layer of a KV cache, as kernels see it. KvCache::layer makes one; an engine with its own
// pools fills it by hand. Page ids index dimension 0. The memory belongs to whoever allocated it,
// outlives the runs enqueued on it and needs no initialisation: nothing but appended tokens reaches
// a result (the tests fill the rest with NaN). A run only reads it; append_kv writes the pages,
// planes and ring rows of the new tokens, which no other sequence may share.
struct KvLayerView {
  KvFormat format;
  // kPlain GQA: [num_pages, num_kv_heads, page_size, key_dim] (other orders by strides).
  // MLA: [num_pages, 1, page_size, 576], V being the first 512 channels of the same rows.
  // kTwoPlane: unused.
  TensorView k;
  TensorView v;  // GQA: [num_pages, num_kv_heads, page_size, value_dim]; MLA: unused
  // kTwoPlane only. chunk (page, head) starts at chunks + page * chunk_page_stride_bytes +
  // head * format.chunk_bytes(); residuals likewise with format.residual_bytes(). Pointers and
  // page strides are multiples of 16 bytes.
  uint8_t* chunks = nullptr;
  int64_t chunk_page_stride_bytes = 0;
  uint8_t* residuals = nullptr;
  int64_t residual_page_stride_bytes = 0;
  int64_t num_pages = 0;  // of both planes
  // [num_slots, num_kv_heads, format.recent_ring_tokens(), key_dim]: token j of the sequence in
  // slot s is row j mod ring of slot s, for tokens from num_quantized_pages(kv_len) * page_size on.
  TensorView recent_k;
};

// The sequences of a step: arrays on the device of the run, read at run time (a captured CUDA Graph
// may be replayed after they have changed). The CPU refuses lengths beyond desc.max_kv_len,
// query_len or block_table_stride pages, and ids of used pages that the pool does not have. On CUDA
// the host does not see them: they are the caller's to keep, and what breaks them is undefined.
struct BatchView {
  int32_t batch = 0;
  // [batch, block_table_stride] page ids, all of it readable; only the first ceil(kv_len /
  // page_size) of a row are used, and no more than block_table_stride.
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;
  const int32_t* kv_lens = nullptr;     // [batch] tokens visible, this step's own included
  const int32_t* query_lens = nullptr;  // [batch] query tokens, or nullptr: args.query_len each
  const int32_t* slots = nullptr;       // [batch] rows of recent_k; kTwoPlane only
};

// Statistics on request; each pointer may be nullptr. Device memory, written by the run.
struct DecodeStats {
  int64_t* tokens_scanned = nullptr;    // [batch, num_kv_heads] tokens whose codes were read
  int64_t* tokens_attended = nullptr;   // [batch, num_kv_heads] tokens attended exactly, sink and
                                        // recent included; / kv_len = kept_fraction
  int64_t* bytes_read = nullptr;        // [batch, num_kv_heads] bytes of the cache that were read
  float* pseudo_max = nullptr;          // [batch, query_len, num_q_heads] m~ (dense: -infinity)
  float* dropped_mass_bound = nullptr;  // [batch, query_len, num_q_heads] num_dropped *
                                        // exp(m~ - delta - lse): rigorous if certified
  uint32_t* kept_tiles = nullptr;  // [batch, num_kv_heads, kept_tiles_stride], bit t % 32 of word
  int64_t kept_tiles_stride = 0;   // t / 32 is set when tile t was attended
};

struct DecodeArgs {
  int32_t query_len = 1;  // rows of q's dimension 1, at most desc.max_query_len
  TensorView q;           // [batch, query_len, num_q_heads, key_dim], q_dtype
  TensorView o;           // [batch, query_len, num_q_heads, value_dim], q_dtype; written whole,
                          // never read; must not overlap q, the cache, lse or the workspace:
                          // kInvalidArgument where that is sure, else the caller's to know
  float* lse = nullptr;   // [batch, query_len, num_q_heads] contiguous, natural log, or nullptr
  KvLayerView kv;
  BatchView batch;
  const float* sink_logits = nullptr;  // [num_q_heads] iff desc.learned_sinks
  DecodeStats stats;
};

// What serves a descriptor on a device.
struct KernelChoice {
  std::string name;              // e.g. "cpu/gqa_decode"
  std::string isa;               // e.g. "avx512", or the CUDA architecture "sm_90a"
  int64_t tokens_per_split = 0;  // 0: scheduled on the device
};

// Pure: depends on its arguments alone, needs no device: on CUDA a DeviceInfo of type,
// compute_capability, num_sms and shared_memory_bytes will do. kInvalidArgument for a bad
// descriptor or device.num_threads; kUnavailable where the build has no backend for device.type;
// kUnsupported lists every reason why nothing fits.
LONGDECODE_API Result<KernelChoice> select_kernel(const DecodeDesc& desc, const DeviceInfo& device);

// A plan that was moved from may be destroyed or assigned to: its init and run return
// kFailedPrecondition, desc and kernel their defaults, workspace_bytes 0.
class LONGDECODE_API DecodePlan {
 public:
  // The errors of select_kernel.
  static Result<DecodePlan> create(const DecodeDesc& desc, const DeviceInfo& device);
  DecodePlan(DecodePlan&&) noexcept;
  DecodePlan& operator=(DecodePlan&&) noexcept;
  ~DecodePlan();

  const DecodeDesc& desc() const;
  const KernelChoice& kernel() const;

  // Device bytes for the workspace: 16-byte aligned, not shared by concurrent runs, reusable by
  // the next run without another init. It belongs to the caller and outlives the runs.
  int64_t workspace_bytes() const;

  // kInvalidArgument where workspace is null or not aligned and workspace_bytes is not 0. CUDA:
  // enqueues; what CUDA refuses is kUnavailable (no device or driver), kOutOfMemory or kInternal.
  Status init(void* workspace, StreamHandle stream);

  // Validates what the host can see (kInvalidArgument), then enqueues. On the CPU it returns when
  // the result is there, and lengths and page ids are validated too (kInvalidArgument, nothing
  // written). kFailedPrecondition before init; what CUDA refuses as in init.
  Status run(const DecodeArgs& args, StreamHandle stream);

 private:
  struct Impl;
  explicit DecodePlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Merges partial attention results over disjoint token sets by their lse:
// lse = ln sum_p exp(lse_p), o = sum_p exp(lse_p - lse) o_p. An empty partial has lse = -infinity
// (its o is not read); all empty gives o = 0, lse = -infinity. Memory of the device; o and lse
// overlap neither the partials nor each other.
struct MergeArgs {
  int32_t num_partials = 0;
  int64_t num_rows = 0;
  int64_t dim = 0;
  const float* partial_o = nullptr;    // [num_partials, num_rows, dim]
  const float* partial_lse = nullptr;  // [num_partials, num_rows], natural log
  float* o = nullptr;                  // [num_rows, dim]
  float* lse = nullptr;                // [num_rows] or nullptr
};
// kInvalidArgument, and kUnavailable where the build has no backend for device.type.
LONGDECODE_API Status merge_partials(const MergeArgs& args, const DeviceInfo& device,
                                     StreamHandle stream);

// The CPU of this process (`num_threads` = the CPUs it may use) or a CUDA device. kUnavailable,
// with the reason, where there is none or the build has no backend for it.
LONGDECODE_API Result<DeviceInfo> detect_device(DeviceType type, int32_t device_idx = 0);

}  // namespace longdecode

#endif  // LONGDECODE_ATTENTION_H_
