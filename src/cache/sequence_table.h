// The host side of a KV cache: sequences, their pages, and the reserved step. Pure bookkeeping; the
// device copies that it asks for are done by the caller's CopyPage.
#ifndef LONGDECODE_CACHE_SEQUENCE_TABLE_H_
#define LONGDECODE_CACHE_SEQUENCE_TABLE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "longdecode/kv_cache.h"
#include "longdecode/kv_format.h"
#include "longdecode/status.h"

namespace longdecode {

// Copies one page of every layer. Called before the page table refers to `to_page`.
using CopyPage = std::function<Status(int32_t from_page, int32_t to_page)>;

enum class StepState { kNone, kReserved, kCommitted };

class SequenceTable {
 public:
  // desc has been validated: counts are positive and fit an int32_t. May throw std::bad_alloc.
  explicit SequenceTable(const KvCacheDesc& desc);

  int64_t num_free_pages() const { return pool_.num_free(); }
  int64_t width() const { return width_; }  // pages of the longest sequence
  int64_t memory_bytes() const;

  Result<SequenceId> add();
  Status free(SequenceId sequence);
  Result<int64_t> kv_len(SequenceId sequence) const;
  Result<SequenceId> fork(SequenceId parent, const CopyPage& copy);
  Status truncate(SequenceId sequence, int64_t num_tokens);

  // The step, as KvCache::reserve documents. An error other than of `copy` changes nothing.
  Status reserve(std::span<const SequenceId> sequences, std::span<const int32_t> new_tokens,
                 const CopyPage& copy);
  // Lowers the tokens of the reserved step and returns the pages that they do not need.
  Status shrink_step(std::span<const int32_t> new_tokens);
  Status commit();
  // Drops a reserved step and returns its pages. The view of a committed step ends too.
  void cancel_step();
  StepState step_state() const { return step_state_; }
  std::span<const SequenceId> step_sequences() const { return step_sequences_; }
  std::span<const int32_t> step_new_tokens() const { return step_new_tokens_; }
  // Records that keys of the reserved step have been written over older ones in the rings.
  void mark_appended();

  // Pages for kv_len tokens of an empty sequence outside the step (an import), and the end of it.
  Status begin_import(SequenceId sequence, int64_t kv_len);
  void finish_import(SequenceId sequence, int64_t kv_len);
  void cancel_import(SequenceId sequence);

  // Page ids of a live sequence, those of the reserved step or import included.
  std::span<const int32_t> pages(SequenceId sequence) const;

 private:
  struct Sequence {
    bool live = false;
    int32_t kv_len = 0;      // committed tokens
    int32_t longest = 0;     // largest kv_len so far, its ancestors' at fork time included
    int32_t ring_start = 0;  // oldest position from which on the ring holds every key
    int32_t num_pages = 0;   // valid entries of its row; more than kv_len needs while in a step
    uint64_t mark = 0;       // last reserve call that named it
  };

  Status check_live(SequenceId sequence) const;
  Status check_recent_keys(SequenceId sequence, int64_t kv_len) const;
  void advance_ring(Sequence& sequence, int64_t new_tokens) const;
  bool in_step(SequenceId sequence) const;
  int32_t committed_pages(const Sequence& sequence) const;
  int32_t* row(SequenceId sequence) { return table_.data() + sequence * width_; }
  Status check_step(std::span<const SequenceId> sequences, std::span<const int32_t> new_tokens);
  int64_t pages_to_copy(std::span<const SequenceId> sequences, std::span<const int32_t> new_tokens);
  void take_pages(SequenceId sequence, int32_t num_pages);
  void drop_pages(SequenceId sequence, int32_t num_pages);

  KvFormat format_;
  int64_t max_kv_len_;
  int64_t width_;
  PagePool pool_;
  std::vector<Sequence> sequences_;
  std::vector<SequenceId> free_slots_;  // a stack
  std::vector<int32_t> table_;          // [max_sequences, width]

  StepState step_state_ = StepState::kNone;
  std::vector<SequenceId> step_sequences_;
  std::vector<int32_t> step_new_tokens_;
  std::vector<int32_t> shared_pages_;  // scratch of pages_to_copy
  uint64_t reserve_count_ = 0;
};

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_SEQUENCE_TABLE_H_
