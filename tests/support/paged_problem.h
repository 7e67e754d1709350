// A problem laid out in paged pools, everything that a kernel must not read poisoned.
#ifndef LONGDECODE_TESTS_SUPPORT_PAGED_PROBLEM_H_
#define LONGDECODE_TESTS_SUPPORT_PAGED_PROBLEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/guarded_memory.h"
#include "tests/support/problem_spec.h"

namespace longdecode::testing {

// Memory of a pool: dense, or sparse for page ids above 2^16.
class Pool {
 public:
  Pool() = default;
  Pool(int64_t num_bytes, bool sparse);
  uint8_t* data() { return sparse_ ? sparse_->data() : dense_.data(); }
  bool is_sparse() const { return sparse_ != nullptr; }
  bool canaries_intact() const { return dense_.canaries_intact(); }
  uint64_t fingerprint() const { return dense_.fingerprint(); }

 private:
  GuardedBuffer dense_;
  std::unique_ptr<SparseMemory> sparse_;
};

class PagedProblem {
 public:
  explicit PagedProblem(const ProblemSpec& spec);
  PagedProblem(const PagedProblem&) = delete;
  PagedProblem& operator=(const PagedProblem&) = delete;

  const ProblemSpec& spec() const { return spec_; }
  const DecodeDesc& desc() const { return desc_; }
  // Everything but the outputs.
  const DecodeArgs& args() const { return args_; }
  int32_t batch() const { return args_.batch.batch; }
  LogicalSequence& sequence(int32_t batch_idx) { return sequences_[size_t(batch_idx)]; }
  std::string repro() const { return testing::repro(spec_); }

  // Empty, or what a run wrote that it must not write.
  std::string damage() const;
  bool canaries_intact() const;
  // A hash of K, V, codes and residuals of all pages, owned or not (not of the ring).
  uint64_t pools_fingerprint() const;

 private:
  void assign_pages();
  void make_plain_pools();
  void make_two_plane_pools();
  void make_queries();
  void store_sequence(int32_t batch_idx);
  void store_planes(int32_t batch_idx);
  void poison_page(int32_t page);
  uint64_t fingerprint() const;

  ProblemSpec spec_;
  DecodeDesc desc_;
  DecodeArgs args_;
  std::vector<LogicalSequence> sequences_;
  std::vector<std::vector<int32_t>> pages_;  // per sequence
  int64_t num_pages_ = 0;
  Pool k_pool_, v_pool_, chunk_pool_, residual_pool_;
  GuardedBuffer ring_, q_, table_, kv_lens_, query_lens_, slots_, sink_logits_;
  uint64_t fingerprint_ = 0;
};

}  // namespace longdecode::testing

#endif  // LONGDECODE_TESTS_SUPPORT_PAGED_PROBLEM_H_
