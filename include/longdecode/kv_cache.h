// A paged KV cache: one block table for all layers, one pool per layer, pages shared by reference
// count. One decode step:
//
//   cache.reserve(sequences, new_tokens);       // host: pages, block table, lengths of the step
//   for each layer:
//     cache.append(layer, k, v, stream);         // post-RoPE keys; quantises pages that are due
//     plan.run({.q, .o, .kv = cache.layer(layer), .batch = cache.step()}, stream);
//   cache.commit();                              // the step's tokens now belong to the sequences
#ifndef LONGDECODE_KV_CACHE_H_
#define LONGDECODE_KV_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "longdecode/attention.h"
#include "longdecode/export.h"
#include "longdecode/kv_format.h"
#include "longdecode/status.h"
#include "longdecode/tensor.h"
#include "longdecode/types.h"

namespace longdecode {

// Index of the sequence's slot: 0 .. max_sequences - 1. Valid until free_sequence.
using SequenceId = int32_t;

// Writes new tokens of a step into one layer (engines with their own pools call it directly).
// Sequence b gets query_lens[b] tokens at positions kv_lens[b] - query_lens[b] .. kv_lens[b] - 1.
// Two-plane: keys go to the ring; pages due by num_quantized_pages(kv_lens[b]) are quantised.
struct AppendArgs {
  KvLayerView kv;
  BatchView batch;  // kv_lens after the append; query_lens = new tokens of each sequence, or
                    // nullptr: the size of k's dimension 1
  TensorView k;     // [batch, max_new, num_kv_heads, key_dim] post-RoPE, any DType
  TensorView v;     // [batch, max_new, num_kv_heads, value_dim]; ignored for MLA
};
// kInvalidArgument, on CUDA without the lengths and ids, which the host does not see; kUnavailable
// where the build has no backend for device.type; kUnsupported on CUDA: an fp32 cache, k and v of
// different DTypes, or more new tokens than a launch takes.
LONGDECODE_API Status append_kv(const AppendArgs& args, const DeviceInfo& device,
                                StreamHandle stream);

struct KvCacheDesc {
  KvFormat format;
  int32_t num_layers = 1;     // 1..4096
  int64_t num_pages = 0;      // pages per layer, shared by all sequences; 1..2^31 - 1
  int32_t max_sequences = 1;  // slots, 1 or more
  int64_t max_kv_len = 0;     // tokens per sequence, 1..2^31 - 1; sets the width of the block table
};

// An existing paged cache of one layer, as engines keep it, to be imported.
struct PagedKv {
  TensorView k;  // [num_pages, num_kv_heads, page_size, key_dim], any page size, any DType
  TensorView v;  // [num_pages, num_kv_heads, page_size, value_dim]; ignored for MLA
};

// On CUDA append and import_dense enqueue on the stream they are given; reserve and fork copy on
// that of set_stream. All of them and the runs belong on one stream, or on streams that wait for
// each other; then a reserve is safe while earlier steps still run. The other calls are host work.
// No call waits for the device, except where the driver does before it takes lengths and tables
// from the host.
//
// Not thread-safe: calls on one cache must not overlap. Freeing or truncating a sequence of the
// reserved step drops that step: append and commit then fail with kFailedPrecondition. A cache that
// was moved from may be destroyed or assigned to: every function that returns a Status fails with
// kFailedPrecondition, the others return defaults and 0.
class LONGDECODE_API KvCache {
 public:
  // kInvalidArgument for a bad descriptor, kOutOfMemory when pools or tables do not fit,
  // kUnavailable where the device is not there or the build has no backend for it.
  static Result<KvCache> create(const KvCacheDesc& desc, const DeviceInfo& device);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  const KvCacheDesc& desc() const;
  int64_t num_free_pages() const;
  int64_t memory_bytes() const;  // pools, rings and tables of all layers

  // CUDA: where reserve and fork enqueue their copies. Until it is called, the default stream
  // (which a stream made with cudaStreamNonBlocking does not wait for).
  Status set_stream(StreamHandle stream);

  // --- Sequences ---
  Result<SequenceId> add_sequence();  // empty; kOutOfMemory when every slot is taken
  Status free_sequence(SequenceId sequence);
  Result<int64_t> kv_len(SequenceId sequence) const;  // committed tokens

  // A second sequence with the same tokens: full pages are shared, the partial page and the ring
  // are copied. Later appends to either do not change the other.
  Result<SequenceId> fork(SequenceId parent);

  // Takes back the last num_tokens tokens. Lossless. Two-plane caches refuse to go more than
  // kMaxTruncateTokens below the longest length that the sequence has had.
  Status truncate(SequenceId sequence, int64_t num_tokens);

  // --- One step ---
  // Makes room for new_tokens[b] >= 0 more tokens of sequences[b] (distinct): takes pages from the
  // pool, gives a sequence its own copy of a shared page it will write to, and fills the arrays of
  // `step`. kOutOfMemory leaves everything as it was. A reserve before the commit replaces the
  // earlier one; kFailedPrecondition when what that one appended (more than kMaxTruncateTokens)
  // has overwritten recent keys of a two-plane sequence: append its other layers and commit it.
  // No device synchronisation.
  Status reserve(std::span<const SequenceId> sequences, std::span<const int32_t> new_tokens);

  // The reserved step: kv_lens with the new tokens, query_lens = the new tokens, block table rows
  // and slots by batch index. The pointers stay the same for the cache's lifetime.
  // For a run with fewer query tokens than were appended (the last token of a prefill chunk), copy
  // the view and set query_lens to nullptr or to an array of your own.
  const BatchView& step() const;

  // k, v as in AppendArgs, of the reserved step. Every layer once, in any order: a second append of
  // a layer is kFailedPrecondition, because the first may have pushed the keys of a page that is
  // quantised now out of the ring. A refused argument (kInvalidArgument) has written nothing and
  // may be corrected; after any other failure reserve again.
  Status append(int32_t layer_idx, const TensorView& k, const TensorView& v, StreamHandle stream);

  // Lowers the tokens of the reserved step to new_tokens[b], at most those reserved, before a layer
  // is appended or marked, and gives back the pages that they do not need. For an engine that
  // reserves ahead, advances lengths of its own on the device and ends earlier than it thought: the
  // arrays of step() keep what reserve put there. So append is kFailedPrecondition from here on;
  // mark_appended the layers. Tokens that were written stay in the step, wanted or not: their keys
  // have overwritten older ones of the ring. Truncate what is not wanted after the commit.
  Status shrink_step(std::span<const int32_t> new_tokens);

  // The caller's word, instead of append, that the step's tokens of this layer are written, or will
  // be in stream order: by a replayed CUDA Graph that captured append, or by the engine's own
  // kernel on layer() and step(). Nothing checks it. kFailedPrecondition as append.
  Status mark_appended(int32_t layer_idx);

  // Ends the step: kv_len grows by the reserved tokens. kFailedPrecondition, naming the layers, and
  // the step stays open, while it has new tokens that a layer has neither got by append nor by
  // mark_appended.
  Status commit();

  // The pointers belong to the cache and live as long as it.
  KvLayerView layer(int32_t layer_idx) const;

  // Fills an empty sequence with kv_len tokens of an existing paged cache: layers[l] is layer l's
  // source, block_table its ceil(kv_len / source page size) page ids (host memory).
  Status import_dense(SequenceId sequence, std::span<const PagedKv> layers,
                      std::span<const int32_t> block_table, int64_t kv_len, StreamHandle stream);

 private:
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace longdecode

#endif  // LONGDECODE_KV_CACHE_H_
