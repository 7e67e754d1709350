// Byte-pair encoding: joins neighbouring symbols in the order in which the merges were learnt
// (Sennrich et al. 2016), with a heap of candidate pairs: n log n for a piece of n bytes.
#ifndef LONGDECODE_RUNNER_TOKENIZER_BPE_MERGER_H_
#define LONGDECODE_RUNNER_TOKENIZER_BPE_MERGER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::runner {

class BpeMerger {
 public:
  // merges: "left right" in order of rank; left, right and their concatenation must be tokens.
  static Result<BpeMerger> create(const std::unordered_map<std::string_view, int32_t>& token_ids,
                                  const std::vector<std::string>& merges);

  // Appends the tokens of one piece to `ids`. symbols: the token of each byte, negative where the
  // vocabulary has none: such a symbol joins with nothing and is appended as it is.
  void merge(std::span<const int32_t> symbols, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t merged_id = 0;
  };
  static uint64_t key(int32_t left_id, int32_t right_id) {
    return (uint64_t{static_cast<uint32_t>(left_id)} << 32) | static_cast<uint32_t>(right_id);
  }

  std::unordered_map<uint64_t, Merge> merges_;  // by the ids of the pair
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_TOKENIZER_BPE_MERGER_H_
