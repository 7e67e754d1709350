// What a test wants to run: shapes, lengths, layout and the logical K, V, Q before any paging.
#ifndef LONGDECODE_TESTS_SUPPORT_PROBLEM_SPEC_H_
#define LONGDECODE_TESTS_SUPPORT_PROBLEM_SPEC_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longdecode/attention.h"

namespace longdecode::testing {

// One sequence's tensors, row-major, already rounded to the dtypes of the cache and of Q.
struct LogicalSequence {
  int32_t kv_len = 0;
  int32_t query_len = 0;
  int32_t num_kv_heads = 0;
  int32_t num_q_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  std::vector<float> k;  // [kv_len, num_kv_heads, key_dim]
  std::vector<float> v;  // [kv_len, num_kv_heads, value_dim]; MLA: empty
  std::vector<float> q;  // [query_len, num_q_heads, key_dim]

  float* key(int64_t token, int32_t kv_head) {
    return k.data() + (token * num_kv_heads + kv_head) * key_dim;
  }
  float* value(int64_t token, int32_t kv_head) {
    return v.data() + (token * num_kv_heads + kv_head) * value_dim;
  }
  float* query(int64_t query_idx, int32_t head) {
    return q.data() + (query_idx * num_q_heads + head) * key_dim;
  }
  // Makes the score of (every query token of `head`, token) equal to `nats`: adds to the key the
  // multiple of the head's query that does it. softmax_scale as the kernel uses it.
  void plant_score(int64_t token, int32_t head, double nats, double softmax_scale);
};

enum class PageOrder { kInOrder, kScattered, kDescending, kHighIds };
enum class PoolLayout { kHnd, kNhd, kInterleaved };

struct ProblemSpec {
  DecodeDesc desc;  // max_batch, max_query_len and max_kv_len are raised to what the lengths need
  std::vector<int32_t> kv_lens;
  int32_t query_len = 1;
  std::vector<int32_t> query_lens;  // empty: query_len each
  uint32_t seed = 1;
  std::vector<int32_t> stream_ids;  // random numbers of each sequence; empty: its batch index
  double score_deviation = 1.0;     // nats
  PageOrder page_order = PageOrder::kScattered;
  PoolLayout layout = PoolLayout::kHnd;
  bool strided_q = false;             // Q and O rows with gaps
  bool garbage_unit_strides = false;  // size-1 dimensions get a stride that must be ignored
  bool empty_pools = false;           // nothing stored: what append starts from
  int32_t shared_pages = 0;           // sequences share the first pages of sequence 0
  std::vector<float> sink_logits;     // filled at random when desc.learned_sinks and empty
  // Changes the random tensors before they are rounded and stored.
  std::function<void(LogicalSequence&, int32_t stream_id)> edit;
  std::string note;  // names the edit in the repro line
};

// Of all that gqa_spec makes for the rest of the process, whatever it is asked for: the op tests on
// kernels that serve nothing else.
void set_only_shape(int32_t head_dim, DType dtype);

// FFD: the default options, but no margin.
ProblemSpec gqa_spec(Method method, DType dtype, int32_t num_q_heads, int32_t num_kv_heads,
                     int32_t head_dim, int32_t page_size, std::vector<int32_t> kv_lens);
ProblemSpec mla_spec(DType dtype, int32_t num_q_heads, int32_t page_size,
                     std::vector<int32_t> kv_lens);

double resolved_scale(const DecodeDesc& desc);
// desc with its limits raised.
DecodeDesc resolved_desc(const ProblemSpec& spec);
std::vector<LogicalSequence> make_sequences(const ProblemSpec& spec);
// One line from which the problem can be built again.
std::string repro(const ProblemSpec& spec);

// True when LONGDECODE_TEST_QUICK=1: sanitizer runs use smaller sizes.
bool quick();
// full, or a smaller value in a quick run.
inline int32_t sized(int32_t full, int32_t small) { return quick() ? small : full; }

}  // namespace longdecode::testing

#endif  // LONGDECODE_TESTS_SUPPORT_PROBLEM_SPEC_H_
