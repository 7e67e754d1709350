#include "cpu/dense_decode.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

#include "base/integer_math.h"
#include "cpu/paged_rows.h"
#include "cpu/split_tiles.h"
#include "cpu/tile_amx.h"
#include "cpu/tile_attention.h"

namespace longdecode::cpu {
namespace {

// Enough parts to keep many threads busy, but a split should pay for its state and its merging: 512
// tokens instead of 2048 cost GQA 4% of its time. A state should also be small beside what its
// split reads, 1 / 64: with 16 heads of MLA it is as large as 29 tokens.
constexpr int64_t kTargetParts = 64;
constexpr int64_t kMinTokensPerSplit = 512;
constexpr int64_t kMaxTokensPerSplit = 2048;
constexpr int64_t kMinBytesPerStateByte = 64;
constexpr int64_t kWorkspaceAlignment = 64;  // a cache line, the widest vector

// A multiple of a cache line.
int64_t amx_floats(const DecodeDesc& desc, int32_t max_rows) {
  return AmxTiles::scratch_bytes(max_rows, desc.format.key_dim, desc.format.value_dim) /
         static_cast<int64_t>(sizeof(float));
}

// Of one kv head.
int64_t token_bytes(const KvFormat& format) {
  return dtype_bytes(format.dtype) *
         (format.key_dim + (format.op == Op::kMla ? 0 : format.value_dim));
}

// One sequence of a run and how it is split: split i covers tokens [i, i + 1) * tokens_per_split,
// counted from token 0; splits that a sliding window hides do not exist.
struct Sequence {
  QueryWindow window;
  int64_t begin = 0;  // first token that any query token sees
  int64_t end = 0;
  int64_t first_split = 0;
  int64_t num_splits = 0;  // 0: nothing visible
};

class DenseDecode final : public DecodeKernel {
 public:
  DenseDecode(const DecodeDesc& desc, const DeviceInfo& device)
      : desc_(desc),
        num_threads_(device.num_threads),
        tokens_per_split_(dense_tokens_per_split(desc)),
        max_splits_(ceil_div(desc.max_kv_len, tokens_per_split_)),
        group_(desc.num_q_heads / desc.format.num_kv_heads),
        max_rows_(group_ * desc.max_query_len),
        use_amx_(amx_serves(desc, device)),
        q_floats_(max_rows_ * packed_dim(desc.format.key_dim)),
        amx_floats_(use_amx_ ? amx_floats(desc, max_rows_) : 0),
        state_floats_(row_state_floats(max_rows_, desc.format.value_dim)) {}

  int64_t workspace_bytes() const override {
    int64_t floats = num_threads_ * thread_floats();
    if (max_splits_ > 1) {
      floats += int64_t{desc_.max_batch} * desc_.format.num_kv_heads * max_splits_ * state_floats_;
    }
    return floats * static_cast<int64_t>(sizeof(float)) + kWorkspaceAlignment;
  }

  Status init(void*, StreamHandle) override { return {}; }
  Status run(const DecodeArgs& args, void* workspace, StreamHandle) override;

 private:
  // One (sequence, kv head) of a run.
  struct Head {
    const DecodeArgs* args = nullptr;
    Sequence sequence;
    int32_t batch_idx = 0;
    int32_t kv_head = 0;
  };

  // What a thread has packed: the queries of one head serve all its splits.
  struct PackedQueries {
    int32_t batch_idx = -1;
    int32_t kv_head = -1;
    std::optional<AmxTiles> amx;
    QueryRows rows;
  };

  // Task i of a run is split i % splits of head i / splits. Threads take them in order.
  struct Tasks {
    const DecodeArgs* args = nullptr;
    int64_t splits = 0;
    int64_t count = 0;
    std::atomic<int64_t> next = 0;
  };

  Head head_at(const DecodeArgs& args, int64_t index) const;
  // Each thread has packed queries, a state and what AMX needs; then come the states of split
  // sequences.
  int64_t thread_floats() const { return q_floats_ + state_floats_ + amx_floats_; }
  float* thread_scratch(float* workspace, int32_t thread_idx) const {
    return workspace + thread_idx * thread_floats();
  }
  float* split_states(float* workspace, const Head& head) const {
    const int64_t index = int64_t{head.batch_idx} * desc_.format.num_kv_heads + head.kv_head;
    return workspace + num_threads_ * thread_floats() + index * max_splits_ * state_floats_;
  }

  SplitTiles tiles_of(const Head& head, int64_t split) const;
  void pack_queries(const Head& head, float* q, PackedQueries& packed) const;
  void attend_split(const Tasks& tasks, const Head& head, int64_t split, const QueryRows& rows,
                    float* state_memory) const;
  void attend_tiles(const Tasks& tasks, SplitTiles tiles, const QueryRows& rows,
                    const RowState& state) const;
  void finish(const Head& head, int32_t row, float* states, int64_t num_states) const;
  void write_stats(const Head& head) const;

  DecodeDesc desc_;
  int64_t num_threads_;
  int64_t tokens_per_split_;
  int64_t max_splits_;
  int32_t group_;
  int32_t max_rows_;
  bool use_amx_;
  int64_t q_floats_;
  int64_t amx_floats_;
  int64_t state_floats_;
};

DenseDecode::Head DenseDecode::head_at(const DecodeArgs& args, int64_t index) const {
  Head head;
  head.args = &args;
  head.batch_idx = static_cast<int32_t>(index / desc_.format.num_kv_heads);
  head.kv_head = static_cast<int32_t>(index % desc_.format.num_kv_heads);
  Sequence& sequence = head.sequence;
  const int64_t query_len =
      args.batch.query_lens != nullptr ? args.batch.query_lens[head.batch_idx] : args.query_len;
  sequence.window = {args.batch.kv_lens[head.batch_idx], query_len, desc_.causal,
                     desc_.sliding_window};
  if (query_len == 0) return head;
  sequence.begin = sequence.window.begin(0);
  sequence.end = sequence.window.end(query_len - 1);
  if (sequence.begin >= sequence.end) return head;
  sequence.first_split = sequence.begin / tokens_per_split_;
  sequence.num_splits = ceil_div(sequence.end, tokens_per_split_) - sequence.first_split;
  return head;
}

SplitTiles DenseDecode::tiles_of(const Head& head, int64_t split) const {
  SplitTiles tiles;
  if (split >= head.sequence.num_splits) return tiles;
  const DecodeArgs& args = *head.args;
  const int32_t* pages = args.batch.block_table + head.batch_idx * args.batch.block_table_stride;
  tiles.is_latent = desc_.format.op == Op::kMla;
  tiles.keys = PagedRows(args.kv.k, pages, head.kv_head);
  tiles.values = tiles.is_latent ? tiles.keys : PagedRows(args.kv.v, pages, head.kv_head);
  tiles.window = head.sequence.window;
  const int64_t begin = (head.sequence.first_split + split) * tokens_per_split_;
  tiles.next = std::max(begin, head.sequence.begin);
  tiles.end = std::min(begin + tokens_per_split_, head.sequence.end);
  return tiles;
}

// Every tile is prefetched while the one before it is attended, across tasks too: the next task is
// the next one that no thread has taken, unless another thread is faster.
void DenseDecode::attend_tiles(const Tasks& tasks, SplitTiles tiles, const QueryRows& rows,
                               const RowState& state) const {
  TileBuffer buffers[2];
  bool has_tile = tiles.fill(buffers[0]);
  for (int current = 0; has_tile; current ^= 1) {
    TileBuffer& ahead = buffers[current ^ 1];
    has_tile = tiles.fill(ahead);
    bool has_ahead = has_tile;
    if (!has_ahead) {
      const int64_t task = tasks.next.load(std::memory_order_relaxed);
      has_ahead =
          task < tasks.count &&
          tiles_of(head_at(*tasks.args, task / tasks.splits), task % tasks.splits).fill(ahead);
    }
    attend_tile(buffers[current].tile, rows, state, has_ahead ? &ahead.tile : nullptr);
  }
}

void DenseDecode::pack_queries(const Head& head, float* q, PackedQueries& packed) const {
  if (packed.batch_idx == head.batch_idx && packed.kv_head == head.kv_head) return;
  packed.batch_idx = head.batch_idx;
  packed.kv_head = head.kv_head;
  const KvFormat& format = desc_.format;
  const auto num_rows = static_cast<int32_t>(head.sequence.window.query_len * group_);
  std::optional<AmxTiles>& amx = packed.amx;
  if (use_amx_)
    amx.emplace(q + q_floats_ + state_floats_, num_rows, format.key_dim, format.value_dim);
  for (int32_t row = 0; row < num_rows; ++row) {
    const void* source = row_address(head.args->q, head.batch_idx, row / group_,
                                     head.kv_head * group_ + row % group_);
    pack_query(source, desc_.q_dtype, format.dtype, format.key_dim,
               q + row * packed_dim(format.key_dim));
    if (amx) amx->pack_query(row, source);
  }
  packed.rows = {num_rows,
                 group_,
                 format.key_dim,
                 format.value_dim,
                 format.dtype,
                 format.dtype,
                 desc_.softmax_scale,
                 desc_.soft_cap,
                 q,
                 amx ? &*amx : nullptr};
}

void DenseDecode::attend_split(const Tasks& tasks, const Head& head, int64_t split,
                               const QueryRows& rows, float* state_memory) const {
  const RowState state = row_state_at(state_memory, max_rows_);
  clear(state, rows.num_rows, rows.value_dim);
  attend_tiles(tasks, tiles_of(head, split), rows, state);
}

// Writes the output of one row of a (sequence, kv head), padding rows included.
void DenseDecode::finish(const Head& head, int32_t row, float* states, int64_t num_states) const {
  const DecodeArgs& args = *head.args;
  const int32_t query_idx = row / group_;
  const int32_t q_head = head.kv_head * group_ + row % group_;
  RowOutput output{row_address(args.o, head.batch_idx, query_idx, q_head), desc_.q_dtype, nullptr};
  const int64_t row_idx =
      (int64_t{head.batch_idx} * args.query_len + query_idx) * desc_.num_q_heads + q_head;
  if (args.lse != nullptr) output.lse = args.lse + row_idx;
  if (args.stats.pseudo_max != nullptr) {
    args.stats.pseudo_max[row_idx] = -std::numeric_limits<float>::infinity();
  }
  if (args.stats.dropped_mass_bound != nullptr) args.stats.dropped_mass_bound[row_idx] = 0.0f;
  if (num_states == 0 || query_idx >= head.sequence.window.query_len) {
    return write_empty_row(desc_.format.value_dim, output);
  }
  const StateList list{states,    state_floats_,          static_cast<int32_t>(num_states),
                       max_rows_, desc_.format.value_dim, desc_.format.dtype};
  finish_row(list, row, args.sink_logits != nullptr ? args.sink_logits + q_head : nullptr, output);
}

void DenseDecode::write_stats(const Head& head) const {
  const DecodeStats& stats = head.args->stats;
  const KvFormat& format = desc_.format;
  const int64_t index = int64_t{head.batch_idx} * format.num_kv_heads + head.kv_head;
  const Sequence& sequence = head.sequence;
  const int64_t attended = sequence.num_splits == 0 ? 0 : sequence.end - sequence.begin;
  if (stats.tokens_scanned != nullptr) stats.tokens_scanned[index] = 0;
  if (stats.tokens_attended != nullptr) stats.tokens_attended[index] = attended;
  if (stats.bytes_read != nullptr) stats.bytes_read[index] = attended * token_bytes(format);
  if (stats.kept_tiles == nullptr) return;
  uint32_t* words = stats.kept_tiles + index * stats.kept_tiles_stride;
  std::fill_n(words, stats.kept_tiles_stride, 0u);
  if (attended == 0) return;
  const int64_t last_tile = (sequence.end - 1) / kTileTokens;
  for (int64_t tile = sequence.begin / kTileTokens; tile <= last_tile; ++tile) {
    words[tile / 32] |= 1u << (tile % 32);
  }
}

Status DenseDecode::run(const DecodeArgs& args, void* workspace_memory, StreamHandle) {
  float* workspace = reinterpret_cast<float*>(
      round_up(reinterpret_cast<intptr_t>(workspace_memory), kWorkspaceAlignment));
  const int64_t num_heads = int64_t{args.batch.batch} * desc_.format.num_kv_heads;
  // Every (sequence, kv head) has tasks for the splits of the longest one; those that a sequence
  // does not have return at once. Task 0 of a head writes its statistics.
  const int64_t max_kv_len =
      *std::max_element(args.batch.kv_lens, args.batch.kv_lens + args.batch.batch);
  Tasks tasks;
  tasks.args = &args;
  tasks.splits = std::max<int64_t>(1, ceil_div(max_kv_len, tokens_per_split_));
  tasks.count = num_heads * tasks.splits;
  const int32_t rows_per_head = group_ * args.query_len;
  const auto num_threads = static_cast<int>(std::min(num_threads_, tasks.count));
#pragma omp parallel num_threads(num_threads)
  {
    float* q = thread_scratch(workspace, omp_get_thread_num());
    float* local_state = q + q_floats_;
    PackedQueries packed;
    for (int64_t task = tasks.next++; task < tasks.count; task = tasks.next++) {
      const Head head = head_at(args, task / tasks.splits);
      const int64_t split = task % tasks.splits;
      const int64_t num_splits = head.sequence.num_splits;
      if (split == 0) write_stats(head);
      if (split < num_splits) pack_queries(head, q, packed);
      if (num_splits > 1) {
        if (split < num_splits) {
          float* states = split_states(workspace, head);
          attend_split(tasks, head, split, packed.rows, states + split * state_floats_);
        }
      } else if (split == 0) {
        if (num_splits == 1) attend_split(tasks, head, 0, packed.rows, local_state);
        for (int32_t row = 0; row < rows_per_head; ++row) {
          finish(head, row, local_state, num_splits);
        }
      }
    }
#pragma omp barrier
#pragma omp for schedule(static)
    for (int64_t index = 0; index < num_heads * rows_per_head; ++index) {
      const Head head = head_at(args, index / rows_per_head);
      if (head.sequence.num_splits <= 1) continue;
      finish(head, static_cast<int32_t>(index % rows_per_head), split_states(workspace, head),
             head.sequence.num_splits);
    }
  }
  return {};
}

}  // namespace

const char* dense_isa(const DecodeDesc& desc, const DeviceInfo& device) {
  return amx_serves(desc, device) ? "amx_bf16" : dispatched_isa();
}

int64_t dense_tokens_per_split(const DecodeDesc& desc) {
  const KvFormat& format = desc.format;
  const int64_t num_heads = int64_t{desc.max_batch} * format.num_kv_heads;
  const int64_t num_rows = int64_t{desc.num_q_heads} / format.num_kv_heads * desc.max_query_len;
  const int64_t state_bytes =
      row_state_floats(static_cast<int32_t>(num_rows), format.value_dim) * 4;
  const int64_t least =
      std::clamp(ceil_div(kMinBytesPerStateByte * state_bytes, token_bytes(format)),
                 kMinTokensPerSplit, kMaxTokensPerSplit);
  const int64_t wanted =
      std::clamp(ceil_div(num_heads * desc.max_kv_len, kTargetParts), least, kMaxTokensPerSplit);
  return round_up(std::max(wanted, ceil_div(desc.max_kv_len, kMaxSplits)), kTileCapacity);
}

std::unique_ptr<DecodeKernel> make_dense_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  return std::make_unique<DenseDecode>(desc, device);
}

}  // namespace longdecode::cpu
