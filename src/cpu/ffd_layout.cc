#include "cpu/ffd_layout.h"

#include <algorithm>

#include "base/integer_math.h"

namespace longdecode::cpu {
namespace {

// Enough parts to keep many threads evenly busy; more would only add states to merge (2 KB each at
// group 4 and head_dim 128, and memory that was not in the caches).
constexpr int64_t kTargetParts = 128;
constexpr int64_t kMinTokensPerSplit = 2048;
// Whole words of kept tiles, and a multiple of every page size.
constexpr int64_t kSplitGranule = int64_t{kTileTokens} * 32;
constexpr int64_t kAlignment = 64;

}  // namespace

FfdLayout::FfdLayout(const DecodeDesc& desc) {
  const int64_t num_heads = int64_t{desc.max_batch} * desc.format.num_kv_heads;
  const int64_t wanted = std::max<int64_t>(1, kTargetParts / num_heads);
  tokens_per_split_ =
      round_up(std::max(kMinTokensPerSplit, ceil_div(desc.max_kv_len, wanted)), kSplitGranule);
  max_splits_ = static_cast<int32_t>(ceil_div(desc.max_kv_len, tokens_per_split_));
  group_ = desc.num_q_heads / desc.format.num_kv_heads;
  const int32_t num_rows = desc.max_query_len * group_;
  max_rows_ = round_up(num_rows, kAlignment / 4);
  q_floats_ = num_rows * packed_dim(desc.format.key_dim);
  state_floats_ = round_up(row_state_floats(num_rows, desc.format.value_dim), kAlignment / 4);

  const int64_t num_parts = num_heads * max_splits_;
  const auto place = [&](int64_t num_bytes) {
    const int64_t offset = workspace_bytes_;
    workspace_bytes_ += round_up(num_bytes, kAlignment);
    return offset;
  };
  q_plane_ = place(num_heads * q_floats_ * 4);
  q_recent_ = place(num_heads * q_floats_ * 4);
  states_ = place(num_parts * state_floats_ * 4);
  always_max_ = place(num_parts * max_rows_ * 4);
  kept_words_ = place(num_parts * words_per_split() * 4);
  counters_ = place(num_parts * static_cast<int64_t>(sizeof(FfdCounters)));
  workspace_bytes_ += kAlignment;  // bind() starts at the first multiple of kAlignment
}

}  // namespace longdecode::cpu
