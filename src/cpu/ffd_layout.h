// The workspace of the FFD kernel and how a sequence is cut into splits: a function of the
// descriptor alone.
#ifndef LONGDECODE_CPU_FFD_LAYOUT_H_
#define LONGDECODE_CPU_FFD_LAYOUT_H_

#include <cstdint>

#include "cpu/tile_attention.h"
#include "longdecode/attention.h"

namespace longdecode::cpu {

// What a split has counted.
struct FfdCounters {
  int64_t tokens_scanned = 0;
  int64_t tokens_attended = 0;
  int64_t bytes_read = 0;
};

// Arrays of the workspace. A head is a (batch_idx, kv_head) pair, head_idx = batch_idx *
// num_kv_heads + kv_head; a part is a (head, split) pair. Rows are query-token major.
class FfdLayout {
 public:
  FfdLayout() = default;
  explicit FfdLayout(const DecodeDesc& desc);

  int32_t group() const { return group_; }
  int32_t max_splits() const { return max_splits_; }
  int64_t tokens_per_split() const { return tokens_per_split_; }  // a multiple of any page size
  int64_t workspace_bytes() const { return workspace_bytes_; }
  int64_t state_floats() const { return state_floats_; }
  int64_t words_per_split() const { return tokens_per_split_ / (kTileTokens * 32); }

  // workspace: workspace_bytes(), 16-byte aligned as the contract has it; the arrays need 64.
  void bind(void* workspace) {
    const auto address = reinterpret_cast<uintptr_t>(workspace);
    base_ = reinterpret_cast<uint8_t*>((address + 63) / 64 * 64);
  }

  // [max_rows][padded_dim] in channel order, for the scan and for dequantised keys.
  float* q_plane(int64_t head_idx) const { return floats(q_plane_, head_idx * q_floats_); }
  // The same packed for keys of format.dtype (the ring).
  float* q_recent(int64_t head_idx) const { return floats(q_recent_, head_idx * q_floats_); }
  float* state(int64_t head_idx, int32_t split) const {
    return floats(states_, part(head_idx, split) * state_floats_);
  }
  // [max_rows] largest score of the split's always attended tokens; -infinity: none.
  float* always_max(int64_t head_idx, int32_t split) const {
    return floats(always_max_, part(head_idx, split) * max_rows_);
  }
  // [words_per_split] bit t % 32 of word t / 32: tile t of the split is attended.
  uint32_t* kept_words(int64_t head_idx, int32_t split) const {
    return reinterpret_cast<uint32_t*>(base_ + kept_words_) +
           part(head_idx, split) * words_per_split();
  }
  FfdCounters& counters(int64_t head_idx, int32_t split) const {
    return reinterpret_cast<FfdCounters*>(base_ + counters_)[part(head_idx, split)];
  }

 private:
  int64_t part(int64_t head_idx, int32_t split) const { return head_idx * max_splits_ + split; }
  float* floats(int64_t offset, int64_t index) const {
    return reinterpret_cast<float*>(base_ + offset) + index;
  }

  uint8_t* base_ = nullptr;
  int32_t group_ = 1;
  int32_t max_splits_ = 1;
  int64_t tokens_per_split_ = 0;
  int64_t max_rows_ = 1;  // rounded up to a cache line of floats
  int64_t q_floats_ = 0;
  int64_t state_floats_ = 0;
  int64_t q_plane_ = 0;  // offsets in bytes
  int64_t q_recent_ = 0;
  int64_t states_ = 0;
  int64_t always_max_ = 0;
  int64_t kept_words_ = 0;
  int64_t counters_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_LAYOUT_H_
