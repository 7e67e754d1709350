#include "cache/sequence_table.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"

namespace longdecode {

SequenceTable::SequenceTable(const KvCacheDesc& desc)
    : format_(desc.format),
      max_kv_len_(desc.max_kv_len),
      width_(ceil_div(desc.max_kv_len, desc.format.page_size)),
      pool_(static_cast<int32_t>(desc.num_pages)),
      sequences_(desc.max_sequences),
      free_slots_(desc.max_sequences),
      table_(desc.max_sequences * width_) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  step_sequences_.reserve(desc.max_sequences);
  step_new_tokens_.reserve(desc.max_sequences);
  shared_pages_.reserve(desc.max_sequences);
}

int64_t SequenceTable::memory_bytes() const {
  const int64_t num_sequences = static_cast<int64_t>(sequences_.size());
  return 8 * int64_t{pool_.num_pages()} + 4 * static_cast<int64_t>(table_.size()) +
         num_sequences * static_cast<int64_t>(sizeof(Sequence) + 4 * sizeof(int32_t));
}

Status SequenceTable::check_live(SequenceId sequence) const {
  if (sequence < 0 || static_cast<size_t>(sequence) >= sequences_.size()) {
    return invalid_argument("sequence is {}; allowed: 0 to {}", sequence, sequences_.size() - 1);
  }
  if (!sequences_[sequence].live) {
    return invalid_argument("sequence is {}; it is not in use (add_sequence and fork give ids)",
                            sequence);
  }
  return {};
}

// Whether the ring still holds every unquantised key of the sequence at length kv_len. It always
// does within kMaxTruncateTokens of the longest length; a step that appended more and was never
// committed may have overwritten some.
Status SequenceTable::check_recent_keys(SequenceId sequence, int64_t kv_len) const {
  if (format_.keys != KeyEncoding::kTwoPlane || kv_len == 0) return {};
  const int64_t first_needed = format_.num_quantized_pages(kv_len) * format_.page_size;
  const int64_t first_held = sequences_[sequence].ring_start;
  if (first_needed >= first_held) return {};
  return failed_precondition(
      "sequence {} at {} tokens needs its unquantised keys from token {} on, but an uncommitted "
      "step overwrote those before token {}; append every layer of that step and commit it, or "
      "free the sequence",
      sequence, kv_len, first_needed, first_held);
}

// New keys go to the ring from position kv_len on and push out the oldest.
void SequenceTable::advance_ring(Sequence& sequence, int64_t new_tokens) const {
  const int64_t end = sequence.kv_len + new_tokens;
  const int64_t held = std::min(sequence.ring_start, sequence.kv_len);
  sequence.ring_start = static_cast<int32_t>(std::max(held, end - format_.recent_ring_tokens()));
}

bool SequenceTable::in_step(SequenceId sequence) const {
  return step_state_ != StepState::kNone &&
         std::find(step_sequences_.begin(), step_sequences_.end(), sequence) !=
             step_sequences_.end();
}

int32_t SequenceTable::committed_pages(const Sequence& sequence) const {
  return static_cast<int32_t>(ceil_div(sequence.kv_len, format_.page_size));
}

std::span<const int32_t> SequenceTable::pages(SequenceId sequence) const {
  return {table_.data() + sequence * width_, static_cast<size_t>(sequences_[sequence].num_pages)};
}

void SequenceTable::take_pages(SequenceId sequence, int32_t num_pages) {
  int32_t& count = sequences_[sequence].num_pages;
  for (; count < num_pages; ++count) row(sequence)[count] = pool_.take();
}

void SequenceTable::drop_pages(SequenceId sequence, int32_t num_pages) {
  int32_t& count = sequences_[sequence].num_pages;
  while (count > num_pages) pool_.release(row(sequence)[--count]);
}

Result<SequenceId> SequenceTable::add() {
  if (free_slots_.empty()) {
    return out_of_memory("no free sequence: max_sequences is {} and all are in use",
                         sequences_.size());
  }
  const SequenceId sequence = free_slots_.back();
  free_slots_.pop_back();
  sequences_[sequence] = Sequence{};
  sequences_[sequence].live = true;
  return sequence;
}

Status SequenceTable::free(SequenceId sequence) {
  LD_RETURN_IF_ERROR(check_live(sequence));
  if (in_step(sequence)) cancel_step();
  drop_pages(sequence, 0);
  sequences_[sequence].live = false;
  free_slots_.push_back(sequence);
  return {};
}

Result<int64_t> SequenceTable::kv_len(SequenceId sequence) const {
  LD_RETURN_IF_ERROR(check_live(sequence));
  return int64_t{sequences_[sequence].kv_len};
}

Result<SequenceId> SequenceTable::fork(SequenceId parent, const CopyPage& copy) {
  LD_RETURN_IF_ERROR(check_live(parent));
  LD_RETURN_IF_ERROR(check_recent_keys(parent, sequences_[parent].kv_len));
  const int32_t kv_len = sequences_[parent].kv_len;
  const int32_t full_pages = kv_len / format_.page_size;
  const bool partial = kv_len % format_.page_size != 0;
  if (partial && pool_.num_free() == 0) {
    return out_of_memory("fork of sequence {} needs 1 page for its partial page; 0 of {} are free",
                         parent, pool_.num_pages());
  }
  LD_ASSIGN_OR_RETURN(const SequenceId child, add());
  if (partial) {
    const int32_t page = pool_.take();
    if (Status status = copy(row(parent)[full_pages], page); !status.ok()) {
      pool_.release(page);
      LD_RETURN_IF_ERROR(free(child));
      return status;
    }
    row(child)[full_pages] = page;
  }
  for (int32_t i = 0; i < full_pages; ++i) {
    row(child)[i] = row(parent)[i];
    pool_.add_ref(row(child)[i]);
  }
  sequences_[child] = sequences_[parent];
  sequences_[child].num_pages = full_pages + (partial ? 1 : 0);
  return child;
}

Status SequenceTable::truncate(SequenceId sequence, int64_t num_tokens) {
  LD_RETURN_IF_ERROR(check_live(sequence));
  Sequence& state = sequences_[sequence];
  if (num_tokens < 0 || num_tokens > state.kv_len) {
    return invalid_argument("num_tokens is {}; sequence {} allows 0 to its kv_len, {}", num_tokens,
                            sequence, state.kv_len);
  }
  if (num_tokens == 0) return {};
  const int64_t kv_len = state.kv_len - num_tokens;
  if (format_.keys == KeyEncoding::kTwoPlane && kv_len < state.longest - kMaxTruncateTokens) {
    return invalid_argument(
        "num_tokens is {}: sequence {} would have {} tokens, more than {} below its longest length "
        "{}; a two-plane cache allows at most {} here",
        num_tokens, sequence, kv_len, kMaxTruncateTokens, state.longest,
        std::max<int64_t>(0, state.kv_len - state.longest + kMaxTruncateTokens));
  }
  LD_RETURN_IF_ERROR(check_recent_keys(sequence, kv_len));
  if (in_step(sequence)) cancel_step();
  state.kv_len = static_cast<int32_t>(kv_len);
  drop_pages(sequence, committed_pages(state));
  return {};
}

Status SequenceTable::check_step(std::span<const SequenceId> sequences,
                                 std::span<const int32_t> new_tokens) {
  if (sequences.size() != new_tokens.size()) {
    return invalid_argument("new_tokens has {} elements; allowed: one for each of {} sequences",
                            new_tokens.size(), sequences.size());
  }
  ++reserve_count_;
  for (size_t b = 0; b < sequences.size(); ++b) {
    LD_RETURN_IF_ERROR(check_live(sequences[b]));
    Sequence& state = sequences_[sequences[b]];
    if (state.mark == reserve_count_) {
      return invalid_argument("sequences[{}] is {}, given twice; allowed: distinct sequences", b,
                              sequences[b]);
    }
    state.mark = reserve_count_;
    if (new_tokens[b] < 0 || new_tokens[b] > max_kv_len_ - state.kv_len) {
      return invalid_argument(
          "new_tokens[{}] is {}; sequence {} has {} tokens and allows 0 to {} (max_kv_len is {})",
          b, new_tokens[b], sequences[b], state.kv_len, max_kv_len_ - state.kv_len, max_kv_len_);
    }
    LD_RETURN_IF_ERROR(check_recent_keys(sequences[b], state.kv_len));
  }
  if (step_state_ == StepState::kReserved) {  // what it appended must not be needed
    for (const SequenceId sequence : step_sequences_) {
      LD_RETURN_IF_ERROR(check_recent_keys(sequence, sequences_[sequence].kv_len));
    }
  }
  return {};
}

// Pages that copy-on-write takes for this step. Of r sequences that share a page, w of which write,
// min(w, r - 1) need a copy: the last one left has the page for itself.
int64_t SequenceTable::pages_to_copy(std::span<const SequenceId> sequences,
                                     std::span<const int32_t> new_tokens) {
  shared_pages_.clear();
  for (size_t b = 0; b < sequences.size(); ++b) {
    const int32_t kv_len = sequences_[sequences[b]].kv_len;
    if (new_tokens[b] == 0 || kv_len % format_.page_size == 0) continue;
    const int32_t page = row(sequences[b])[kv_len / format_.page_size];
    if (pool_.ref_count(page) > 1) shared_pages_.push_back(page);
  }
  std::sort(shared_pages_.begin(), shared_pages_.end());
  int64_t num_copies = 0;
  for (auto it = shared_pages_.begin(); it != shared_pages_.end();) {
    const auto end = std::upper_bound(it, shared_pages_.end(), *it);
    num_copies += std::min<int64_t>(end - it, pool_.ref_count(*it) - 1);
    it = end;
  }
  return num_copies;
}

Status SequenceTable::reserve(std::span<const SequenceId> sequences,
                              std::span<const int32_t> new_tokens, const CopyPage& copy) {
  LD_RETURN_IF_ERROR(check_step(sequences, new_tokens));
  const auto pages_after = [&](size_t b) {
    const int64_t tokens = int64_t{sequences_[sequences[b]].kv_len} + new_tokens[b];
    return static_cast<int32_t>(ceil_div(tokens, format_.page_size));
  };
  int64_t needed = pages_to_copy(sequences, new_tokens);
  for (size_t b = 0; b < sequences.size(); ++b) {
    needed += pages_after(b) - committed_pages(sequences_[sequences[b]]);
  }
  int64_t available = pool_.num_free();
  if (step_state_ == StepState::kReserved) {  // its extra pages come back first
    for (const SequenceId sequence : step_sequences_) {
      available += sequences_[sequence].num_pages - committed_pages(sequences_[sequence]);
    }
  }
  if (needed > available) {
    return out_of_memory("the step needs {} more pages; {} of num_pages {} are free", needed,
                         available, pool_.num_pages());
  }

  cancel_step();
  for (size_t b = 0; b < sequences.size(); ++b) {
    const int32_t kv_len = sequences_[sequences[b]].kv_len;
    if (new_tokens[b] == 0 || kv_len % format_.page_size == 0) continue;
    int32_t& entry = row(sequences[b])[kv_len / format_.page_size];
    if (pool_.ref_count(entry) == 1) continue;
    const int32_t page = pool_.take();
    if (Status status = copy(entry, page); !status.ok()) {
      pool_.release(page);
      return status;
    }
    pool_.release(entry);
    entry = page;
  }
  for (size_t b = 0; b < sequences.size(); ++b) take_pages(sequences[b], pages_after(b));
  step_sequences_.assign(sequences.begin(), sequences.end());
  step_new_tokens_.assign(new_tokens.begin(), new_tokens.end());
  step_state_ = StepState::kReserved;
  return {};
}

void SequenceTable::cancel_step() {
  if (step_state_ == StepState::kReserved) {
    for (const SequenceId sequence : step_sequences_) {
      drop_pages(sequence, committed_pages(sequences_[sequence]));
    }
  }
  step_state_ = StepState::kNone;
  step_sequences_.clear();
  step_new_tokens_.clear();
}

Status SequenceTable::shrink_step(std::span<const int32_t> new_tokens) {
  if (step_state_ != StepState::kReserved) {
    return failed_precondition("shrink_step without a reserved step: call reserve first");
  }
  if (new_tokens.size() != step_new_tokens_.size()) {
    return invalid_argument("new_tokens has {} elements; the reserved step has {} sequences",
                            new_tokens.size(), step_new_tokens_.size());
  }
  for (size_t b = 0; b < new_tokens.size(); ++b) {
    if (new_tokens[b] >= 0 && new_tokens[b] <= step_new_tokens_[b]) continue;
    return invalid_argument("new_tokens[{}] is {}; the reserved step allows 0 to {}", b,
                            new_tokens[b], step_new_tokens_[b]);
  }
  for (size_t b = 0; b < new_tokens.size(); ++b) {
    const SequenceId sequence = step_sequences_[b];
    const int64_t kv_len = int64_t{sequences_[sequence].kv_len} + new_tokens[b];
    drop_pages(sequence, static_cast<int32_t>(ceil_div(kv_len, format_.page_size)));
    step_new_tokens_[b] = new_tokens[b];
  }
  return {};
}

void SequenceTable::mark_appended() {
  for (size_t b = 0; b < step_sequences_.size(); ++b) {
    advance_ring(sequences_[step_sequences_[b]], step_new_tokens_[b]);
  }
}

Status SequenceTable::commit() {
  if (step_state_ != StepState::kReserved) {
    return failed_precondition(
        "commit without a reserved step: call reserve first (freeing or "
        "truncating a sequence of the step drops it)");
  }
  for (size_t b = 0; b < step_sequences_.size(); ++b) {
    Sequence& state = sequences_[step_sequences_[b]];
    advance_ring(state, step_new_tokens_[b]);
    state.kv_len += step_new_tokens_[b];
    state.longest = std::max(state.longest, state.kv_len);
  }
  step_state_ = StepState::kCommitted;
  return {};
}

Status SequenceTable::begin_import(SequenceId sequence, int64_t kv_len) {
  LD_RETURN_IF_ERROR(check_live(sequence));
  const Sequence& state = sequences_[sequence];
  if (state.kv_len != 0) {
    return failed_precondition("sequence {} has {} tokens; import_dense allows an empty one",
                               sequence, state.kv_len);
  }
  if (step_state_ == StepState::kReserved && in_step(sequence)) {
    return failed_precondition("sequence {} is part of the reserved step; commit it first",
                               sequence);
  }
  if (kv_len < 0 || kv_len > max_kv_len_) {
    return invalid_argument("kv_len is {}; allowed: 0 to max_kv_len, {}", kv_len, max_kv_len_);
  }
  const int64_t needed = ceil_div(kv_len, format_.page_size);
  if (needed > pool_.num_free()) {
    return out_of_memory("the import needs {} pages; {} of num_pages {} are free", needed,
                         pool_.num_free(), pool_.num_pages());
  }
  take_pages(sequence, static_cast<int32_t>(needed));
  return {};
}

void SequenceTable::finish_import(SequenceId sequence, int64_t kv_len) {
  Sequence& state = sequences_[sequence];
  advance_ring(state, kv_len);
  state.kv_len = static_cast<int32_t>(kv_len);
  state.longest = std::max(state.longest, state.kv_len);
}

void SequenceTable::cancel_import(SequenceId sequence) { drop_pages(sequence, 0); }

}  // namespace longdecode
