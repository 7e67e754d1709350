#include "cpu/dense_decode.h"

#include <omp.h>

#include <algorithm>
#include <limits>

#include "base/integer_math.h"
#include "cpu/paged_rows.h"
#include "cpu/tile_attention.h"

namespace longdecode::cpu {
namespace {

// Enough work per split to pay for its partial (5% of the bytes for MLA at 16 heads), few enough
// tokens to occupy the threads at short contexts.
constexpr int64_t kMinTokensPerSplit = 512;
constexpr int64_t kWorkspaceAlignment = 64;  // a cache line, the widest vector

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
        q_floats_(max_rows_ * packed_dim(desc.format.key_dim)),
        state_floats_(row_state_floats(max_rows_, desc.format.value_dim)) {}

  int64_t workspace_bytes() const override {
    int64_t floats = num_threads_ * (q_floats_ + state_floats_);
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

  Head head_at(const DecodeArgs& args, int64_t index) const;
  // Floats of a thread's packed queries and state, and of the states of split sequences.
  float* thread_scratch(float* workspace, int32_t thread_idx) const {
    return workspace + thread_idx * (q_floats_ + state_floats_);
  }
  float* split_states(float* workspace, const Head& head) const {
    const int64_t index = int64_t{head.batch_idx} * desc_.format.num_kv_heads + head.kv_head;
    return workspace + num_threads_ * (q_floats_ + state_floats_) +
           index * max_splits_ * state_floats_;
  }

  void attend_split(const Head& head, int64_t split, float* q, float* state_memory) const;
  void attend_tiles(const Head& head, int64_t begin, int64_t end, const QueryRows& rows,
                    const RowState& state) const;
  void finish(const Head& head, int32_t row, float* states, int64_t num_states) const;
  void write_stats(const Head& head) const;

  DecodeDesc desc_;
  int64_t num_threads_;
  int64_t tokens_per_split_;
  int64_t max_splits_;
  int32_t group_;
  int32_t max_rows_;
  int64_t q_floats_;
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

void DenseDecode::attend_tiles(const Head& head, int64_t begin, int64_t end, const QueryRows& rows,
                               const RowState& state) const {
  const DecodeArgs& args = *head.args;
  const int32_t* pages = args.batch.block_table + head.batch_idx * args.batch.block_table_stride;
  const PagedRows keys(args.kv.k, pages, head.kv_head);
  const bool is_latent = desc_.format.op == Op::kMla;
  const PagedRows values = is_latent ? keys : PagedRows(args.kv.v, pages, head.kv_head);
  const QueryWindow& window = head.sequence.window;

  struct TileBuffer {
    const void* k_rows[kTileCapacity];
    const void* v_rows[kTileCapacity];
    TokenRange visible[kMaxQueryLen];
    Tile tile;
  };
  TileBuffer buffers[2];
  const auto fill = [&](int64_t token, TileBuffer& buffer) {
    const int64_t count = std::min<int64_t>(kTileCapacity - token % kTileCapacity, end - token);
    keys.fill(token, count, buffer.k_rows);
    if (!is_latent) values.fill(token, count, buffer.v_rows);
    for (int64_t t = 0; t < window.query_len; ++t) {
      buffer.visible[t] = window.in_tile(t, token, count);
    }
    buffer.tile = {static_cast<int32_t>(count), buffer.k_rows,
                   is_latent ? buffer.k_rows : buffer.v_rows, buffer.visible};
    return token + count;
  };
  int64_t next = fill(begin, buffers[0]);
  for (int current = 0;; current ^= 1) {
    const bool is_last = next >= end;
    if (!is_last) next = fill(next, buffers[current ^ 1]);
    attend_tile(buffers[current].tile, rows, state, is_last ? nullptr : &buffers[current ^ 1].tile);
    if (is_last) break;
  }
}

void DenseDecode::attend_split(const Head& head, int64_t split, float* q,
                               float* state_memory) const {
  const KvFormat& format = desc_.format;
  const auto num_rows = static_cast<int32_t>(head.sequence.window.query_len * group_);
  for (int32_t row = 0; row < num_rows; ++row) {
    const void* source = row_address(head.args->q, head.batch_idx, row / group_,
                                     head.kv_head * group_ + row % group_);
    pack_query(source, desc_.q_dtype, format.dtype, format.key_dim,
               q + row * packed_dim(format.key_dim));
  }
  const QueryRows rows{num_rows,
                       group_,
                       format.key_dim,
                       format.value_dim,
                       format.dtype,
                       format.dtype,
                       desc_.softmax_scale,
                       desc_.soft_cap,
                       q};
  const RowState state = row_state_at(state_memory, max_rows_);
  clear(state, num_rows, format.value_dim);
  const int64_t split_begin = (head.sequence.first_split + split) * tokens_per_split_;
  attend_tiles(head, std::max(split_begin, head.sequence.begin),
               std::min(split_begin + tokens_per_split_, head.sequence.end), rows, state);
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
  const int64_t row_bytes =
      dtype_bytes(format.dtype) * (format.key_dim + (format.op == Op::kMla ? 0 : format.value_dim));
  if (stats.tokens_scanned != nullptr) stats.tokens_scanned[index] = 0;
  if (stats.tokens_attended != nullptr) stats.tokens_attended[index] = attended;
  if (stats.bytes_read != nullptr) stats.bytes_read[index] = attended * row_bytes;
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
  const int64_t splits = std::max<int64_t>(1, ceil_div(max_kv_len, tokens_per_split_));
  const int64_t num_tasks = num_heads * splits;
  const int32_t rows_per_head = group_ * args.query_len;
  const auto num_threads = static_cast<int>(std::min(num_threads_, num_tasks));
#pragma omp parallel num_threads(num_threads)
  {
    float* q = thread_scratch(workspace, omp_get_thread_num());
    float* local_state = q + q_floats_;
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < num_tasks; ++task) {
      const Head head = head_at(args, task / splits);
      const int64_t split = task % splits;
      const int64_t num_splits = head.sequence.num_splits;
      if (split == 0) write_stats(head);
      if (num_splits > 1) {
        if (split < num_splits) {
          attend_split(head, split, q, split_states(workspace, head) + split * state_floats_);
        }
      } else if (split == 0) {
        if (num_splits == 1) attend_split(head, 0, q, local_state);
        for (int32_t row = 0; row < rows_per_head; ++row) {
          finish(head, row, local_state, num_splits);
        }
      }
    }
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

int64_t dense_tokens_per_split(const DecodeDesc& desc) {
  return std::max(kMinTokensPerSplit,
                  round_up(ceil_div(desc.max_kv_len, kMaxSplits), kTileCapacity));
}

std::unique_ptr<DecodeKernel> make_dense_decode(const DecodeDesc& desc, const DeviceInfo& device) {
  return std::make_unique<DenseDecode>(desc, device);
}

}  // namespace longdecode::cpu
