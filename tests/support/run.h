// Runs a problem on the library or on the reference and brings the outputs back as values.
#ifndef LONGDECODE_TESTS_SUPPORT_RUN_H_
#define LONGDECODE_TESTS_SUPPORT_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ref/attention.h"
#include "tests/support/paged_problem.h"

namespace longdecode::testing {

struct Outputs {
  Status status;
  int32_t batch = 0;
  std::vector<double> o;         // [batch, query_len, num_q_heads, value_dim]
  std::vector<double> lse;       // [batch, query_len, num_q_heads]
  std::vector<uint16_t> o_bits;  // the same as o, as stored (f32: two words each)
  // Statistics; empty when not asked for.
  std::vector<int64_t> tokens_scanned, tokens_attended, bytes_read;  // [batch, num_kv_heads]
  std::vector<double> pseudo_max, dropped_mass_bound;                // as lse
  std::vector<ref::TileSet> tiles;                                   // [batch]; FFD only
  std::string damage;         // writes outside the outputs, or nothing
  double weight_unit = 0.0;   // half a unit in the last place of the softmax weights, 0: fp32's
  double weight_floor = 0.0;  // the rounding of weights that are subnormal, of a largest one of 1
};

// Anything that takes what DecodePlan takes (args without outputs): the library, the reference, or
// a mutant of either.
using DecodeFn = std::function<Outputs(const DecodeDesc&, const DecodeArgs&)>;

// Fills the outputs that args name, as DecodePlan::run would, all in host memory.
using ExecuteFn = std::function<Status(const DecodeDesc&, const DecodeArgs&)>;

struct RunOptions {
  int32_t num_threads = 0;  // 0: as detected
  bool statistics = true;
  bool sparse_workspace = false;  // one too large to fill with poison
  int32_t num_runs = 1;  // of the same plan and workspace; the last one's outputs are returned
};

// The outputs of one run of `execute`, poisoned before it.
Outputs run_with(const DecodeDesc& desc, const DecodeArgs& args, const ExecuteFn& execute);

// What run_plan runs instead of the library's CPU backend, for the rest of the process: the op
// tests on another device. What it refuses as unsupported passes run_and_check.
void set_run_plan(DecodeFn decode);
bool has_run_plan();

// The CPU of this process. LONGDECODE_TEST_WITHOUT_AMX=1: as if it had no matrix unit.
const DeviceInfo& cpu_device();

// LONGDECODE_TEST_KERNEL=reference runs the reference instead: it tells a wrong test from a wrong
// kernel.
Outputs run_plan(const DecodeDesc& desc, const DecodeArgs& args, const RunOptions& options = {});
Outputs run_reference(const DecodeDesc& desc, const DecodeArgs& args);

// Stores fp64 rows as the outputs of a sequence: O rounded to the dtype of Q, rows that `attention`
// does not have as padding.
void set_sequence(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                  const ref::AttentionOutput& attention, Outputs* outputs);

}  // namespace longdecode::testing

#endif  // LONGDECODE_TESTS_SUPPORT_RUN_H_
