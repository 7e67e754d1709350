#include "runner/tokenizer/bpe_merger.h"

#include <queue>
#include <tuple>

#include "base/errors.h"

namespace longdecode::runner {
namespace {

// A pair that may be joined, valid as long as both symbols are still what they were.
struct Candidate {
  int32_t rank = 0;
  int32_t left = 0;  // index of the left symbol
  int32_t right = 0;
  int32_t left_id = 0;
  int32_t right_id = 0;
  int32_t merged_id = 0;
};

struct LaterCandidate {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.rank, a.left) > std::tie(b.rank, b.left);
  }
};

// Symbols of a piece as a linked list over their first bytes.
struct Symbol {
  int32_t id = 0;
  int32_t previous = 0;
  int32_t next = 0;  // number of symbols at the end
  bool alive = true;
};

}  // namespace

Result<BpeMerger> BpeMerger::create(const std::unordered_map<std::string_view, int32_t>& token_ids,
                                    const std::vector<std::string>& merges) {
  BpeMerger merger;
  merger.merges_.reserve(merges.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    // From 1, because a symbol may be a space in a vocabulary that does not use the byte alphabet.
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return data_loss("tokenizer.ggml.merges[{}] is not two tokens separated by a space", i);
    }
    const auto left = token_ids.find(merge.substr(0, space));
    const auto right = token_ids.find(merge.substr(space + 1));
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto merged = token_ids.find(joined);
    if (left == token_ids.end() || right == token_ids.end() || merged == token_ids.end()) {
      return data_loss("tokenizer.ggml.merges[{}] names a token that is not in the vocabulary", i);
    }
    merger.merges_.emplace(key(left->second, right->second),
                           Merge{static_cast<int32_t>(i), merged->second});
  }
  return merger;
}

void BpeMerger::merge(std::span<const int32_t> symbols, std::vector<int32_t>& ids) const {
  const int32_t count = static_cast<int32_t>(symbols.size());
  std::vector<Symbol> list(symbols.size());
  for (int32_t i = 0; i < count; ++i) list[i] = {symbols[i], i - 1, i + 1, true};

  std::priority_queue<Candidate, std::vector<Candidate>, LaterCandidate> heap;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right >= count || list[left].id < 0 || list[right].id < 0) return;
    const auto found = merges_.find(key(list[left].id, list[right].id));
    if (found == merges_.end()) return;
    heap.push(
        {found->second.rank, left, right, list[left].id, list[right].id, found->second.merged_id});
  };
  for (int32_t i = 0; i + 1 < count; ++i) consider(i, i + 1);

  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = list[top.left];
    Symbol& right = list[top.right];
    // A symbol only ever grows, so equal ids mean that neither has been joined since.
    if (!left.alive || !right.alive || left.id != top.left_id || right.id != top.right_id) continue;
    left.id = top.merged_id;
    left.next = right.next;
    right.alive = false;
    if (left.next < count) list[left.next].previous = top.left;
    consider(left.previous, top.left);
    consider(top.left, left.next);
  }
  for (int32_t i = 0; i < count; i = list[i].next) ids.push_back(list[i].id);
}

}  // namespace longdecode::runner
