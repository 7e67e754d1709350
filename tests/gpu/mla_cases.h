// What the groups of checks of mla_test share.
#ifndef LONGDECODE_TESTS_GPU_MLA_CASES_H_
#define LONGDECODE_TESTS_GPU_MLA_CASES_H_

#include <cstdint>
#include <string>

#include "tests/gpu/mla_check.h"

namespace longdecode::gpu_test {

struct Tally {
  int passed = 0, failed = 0;
  void count(bool ok, const std::string& what);
};

ValueRule smooth_rule(uint64_t seed);
// Scores of deviation 3 nats; one token in 29 is one-hot with scores of deviation 6.
ValueRule peaked_rule(uint64_t seed);

// check_workload on what a run has left.
void check_run(MlaWorkload& workload, const Tolerance& tolerance, int32_t max_rows, Tally& tally,
               const char* name);
void run_case(const MlaCase& c, const DeviceInfo& device, const Tolerance& tolerance,
              int32_t max_rows, Tally& tally, const char* name);

// What DecodePlan promises whatever the numbers are (mla_contract.cc).
void test_contract(const DeviceInfo& device, Tally& tally);

}  // namespace longdecode::gpu_test

#endif  // LONGDECODE_TESTS_GPU_MLA_CASES_H_
