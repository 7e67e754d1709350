#include "cpu/prefill.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/errors.h"
#include "cpu/paged_rows.h"
#include "cpu/tile_attention.h"
#include "cpu/two_plane.h"

namespace longdecode::cpu {
namespace {

// Query rows of a task: enough that converting a tile of keys and values to fp32 costs little
// beside using it, few enough that the rows stay in L2 (384 rows x head_dim 64: 96 KB of queries,
// 96 KB of state).
constexpr int32_t kTargetRows = 384;

// The keys of one kv head as fp32 rows in channel order, whatever the format. Tiles start at
// multiples of kTileCapacity, which divides every two-plane page.
class KeyTiles {
 public:
  KeyTiles(const PrefillArgs& args, int32_t kv_head) : kv_(args.kv), kv_head_(kv_head) {
    pages_ = args.batch.block_table;
    if (kv_.format.keys == KeyEncoding::kPlain) {
      rows_ = PagedRows(kv_.k, pages_, kv_head);
      return;
    }
    slot_ = args.batch.slots[0];
    num_quantized_ = kv_.format.num_quantized_pages(args.batch.kv_lens[0]) * kv_.format.page_size;
  }

  // Fills out[count][stride] with tokens from `begin` on.
  void load(int64_t begin, int64_t count, float* out, int64_t stride) {
    if (begin < num_quantized_) return load_quantized(begin, count, out, stride);
    const KvFormat& format = kv_.format;
    for (int64_t j = 0; j < count; ++j) {
      const void* row = format.keys == KeyEncoding::kPlain
                            ? rows_.row(begin + j)
                            : row_address(kv_.recent_k, slot_, kv_head_,
                                          (begin + j) % format.recent_ring_tokens());
      convert_row(row, format.dtype, format.key_dim, out + j * stride);
    }
  }

 private:
  void load_quantized(int64_t begin, int64_t count, float* out, int64_t stride) {
    const KvFormat& format = kv_.format;
    const int64_t page = pages_[begin / format.page_size];
    const uint8_t* chunk =
        kv_.chunks + page * kv_.chunk_page_stride_bytes + kv_head_ * format.chunk_bytes();
    const uint8_t* residuals =
        kv_.residuals + page * kv_.residual_page_stride_bytes + kv_head_ * format.residual_bytes();
    PageGrid grid;
    load_page_grid(format, chunk, grid);
    const auto first_tile = static_cast<int32_t>(begin % format.page_size / kTileTokens);
    // A query block may end inside a tile; the planes hold all of it.
    for (int32_t tile = 0; tile * kTileTokens < count; ++tile) {
      dequantize_tile(format, grid, chunk, residuals, first_tile + tile,
                      out + tile * kTileTokens * stride, stride);
    }
  }

  const KvLayerView& kv_;
  int32_t kv_head_;
  const int32_t* pages_;
  PagedRows rows_;
  int64_t slot_ = 0;
  int64_t num_quantized_ = 0;  // tokens
};

class Prefill {
 public:
  Prefill(const PrefillArgs& args, int32_t num_threads)
      : args_(args),
        format_(args.kv.format),
        num_threads_(num_threads),
        num_q_heads_(static_cast<int32_t>(args.q.shape[1])),
        group_(num_q_heads_ / format_.num_kv_heads),
        block_queries_(std::max(1, kTargetRows / group_)),
        max_rows_(block_queries_ * group_),
        k_stride_(packed_dim(format_.key_dim)),
        v_stride_(packed_dim(format_.value_dim)) {
    window_.kv_len = args.batch.kv_lens[0];
    window_.query_len = args.q.shape[0];
    window_.sliding_window = args.sliding_window;
  }

  Status run();

 private:
  struct Scratch {
    float* q;
    float* state;
    float* keys;     // [kTileCapacity][k_stride]
    float* columns;  // [key_dim][kTileCapacity]
    float* values;   // [kTileCapacity][v_stride]; unused for MLA
  };
  int64_t q_floats() const { return max_rows_ * k_stride_; }
  int64_t state_floats() const { return row_state_floats(max_rows_, format_.value_dim); }
  int64_t scratch_floats() const {
    return q_floats() + state_floats() + kTileCapacity * (2 * k_stride_ + v_stride_);
  }
  Scratch scratch_at(float* memory) const {
    float* state = memory + q_floats();
    float* keys = state + state_floats();
    float* columns = keys + kTileCapacity * k_stride_;
    return {memory, state, keys, columns, columns + kTileCapacity * k_stride_};
  }
  void attend_block(int32_t kv_head, int64_t first_query, const Scratch& scratch) const;

  const PrefillArgs& args_;
  const KvFormat& format_;
  int32_t num_threads_;
  int32_t num_q_heads_;
  int32_t group_;
  int32_t block_queries_;
  int32_t max_rows_;
  int64_t k_stride_;
  int64_t v_stride_;
  QueryWindow window_;
};

void Prefill::attend_block(int32_t kv_head, int64_t first_query, const Scratch& scratch) const {
  const int64_t num_queries = std::min<int64_t>(block_queries_, window_.query_len - first_query);
  const auto num_rows = static_cast<int32_t>(num_queries * group_);
  const auto q_head = [&](int32_t row) { return kv_head * group_ + row % group_; };
  for (int32_t row = 0; row < num_rows; ++row) {
    pack_query(row_address(args_.q, first_query + row / group_, q_head(row)), args_.q.dtype,
               DType::kF32, format_.key_dim, scratch.q + row * k_stride_);
  }
  const QueryRows rows{num_rows,    group_,      format_.key_dim,     format_.value_dim,
                       DType::kF32, DType::kF32, args_.softmax_scale, args_.soft_cap,
                       scratch.q};
  const RowState state = row_state_at(scratch.state, max_rows_);
  clear(state, num_rows, format_.value_dim);

  KeyTiles keys(args_, kv_head);
  const bool is_latent = format_.op == Op::kMla;
  const PagedRows values =
      is_latent ? PagedRows() : PagedRows(args_.kv.v, args_.batch.block_table, kv_head);
  // The value of a latent row is its prefix.
  const void* v_rows[kTileCapacity];
  for (int32_t j = 0; j < kTileCapacity; ++j) {
    v_rows[j] = is_latent ? scratch.keys + j * k_stride_ : scratch.values + j * v_stride_;
  }
  std::vector<TokenRange> visible(static_cast<size_t>(num_queries));
  const int64_t end = window_.end(first_query + num_queries - 1);
  for (int64_t token = window_.begin(first_query) / kTileCapacity * kTileCapacity; token < end;
       token += kTileCapacity) {
    const int64_t count = std::min<int64_t>(kTileCapacity, end - token);
    keys.load(token, count, scratch.keys, k_stride_);
    transpose_rows(scratch.keys, k_stride_, static_cast<int32_t>(count), format_.key_dim,
                   scratch.columns);
    for (int64_t j = 0; !is_latent && j < count; ++j) {
      convert_row(values.row(token + j), format_.dtype, format_.value_dim,
                  scratch.values + j * v_stride_);
    }
    for (int64_t t = 0; t < num_queries; ++t) {
      visible[static_cast<size_t>(t)] = window_.in_tile(first_query + t, token, count);
    }
    const Tile tile{static_cast<int32_t>(count), nullptr, v_rows, visible.data(), scratch.columns};
    attend_tile(tile, rows, state, nullptr);
  }
  const StateList list{scratch.state, 0, 1, max_rows_, format_.value_dim, DType::kF32};
  for (int32_t row = 0; row < num_rows; ++row) {
    const RowOutput output{row_address(args_.o, first_query + row / group_, q_head(row)),
                           args_.o.dtype, nullptr};
    finish_row(list, row, args_.sink_logits != nullptr ? args_.sink_logits + q_head(row) : nullptr,
               output);
  }
}

Status Prefill::run() {
  const int64_t num_blocks = (window_.query_len + block_queries_ - 1) / block_queries_;
  const int64_t num_tasks = num_blocks * format_.num_kv_heads;
  const auto num_threads = static_cast<int>(std::min<int64_t>(num_threads_, num_tasks));
  const auto num_bytes = static_cast<size_t>(num_threads * scratch_floats()) * sizeof(float);
  const std::unique_ptr<float, decltype(&std::free)> memory(
      static_cast<float*>(std::aligned_alloc(64, num_bytes)), &std::free);
  if (memory == nullptr) {
    return out_of_memory("prefill scratch of {} bytes for {} threads", num_bytes, num_threads);
  }
#pragma omp parallel num_threads(num_threads)
  {
    const Scratch scratch = scratch_at(memory.get() + omp_get_thread_num() * scratch_floats());
    // The last query blocks see the most tokens: they go first.
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < num_tasks; ++task) {
      const int64_t block = num_blocks - 1 - task / format_.num_kv_heads;
      attend_block(static_cast<int32_t>(task % format_.num_kv_heads), block * block_queries_,
                   scratch);
    }
  }
  return {};
}

}  // namespace

Status prefill(const PrefillArgs& args, const DeviceInfo& device) {
  return Prefill(args, device.num_threads).run();
}

}  // namespace longdecode::cpu
