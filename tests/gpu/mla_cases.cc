#include "tests/gpu/mla_cases.h"

#include <fmt/format.h>

#include <cstdio>

namespace longdecode::gpu_test {

void Tally::count(bool ok, const std::string& what) {
  ++(ok ? passed : failed);
  if (!ok && failed <= 40) std::printf("FAILED %s\n", what.c_str());
  std::fflush(stdout);
}

ValueRule smooth_rule(uint64_t seed) {
  ValueRule rule;
  rule.seed = seed;
  rule.k_scale = rule.q_scale = 0.1f;
  rule.clamp = 1.0f;
  return rule;
}

ValueRule peaked_rule(uint64_t seed) {
  ValueRule rule;
  rule.seed = seed;
  rule.q_scale = 3.0f;
  rule.needle_every = 29;
  rule.needle_value = 48.0f;
  return rule;
}

void check_run(MlaWorkload& workload, const Tolerance& tolerance, int32_t max_rows, Tally& tally,
               const char* name) {
  const std::string what = workload.mla_case().describe();
  check_cuda(cudaDeviceSynchronize(), what.c_str());
  workload.fetch();
  const Outcome outcome = check_workload(workload, tolerance, max_rows);
  tally.count(outcome.passed, fmt::format("{} {}: {}", name, what, outcome.failure));
}

void run_case(const MlaCase& c, const DeviceInfo& device, const Tolerance& tolerance,
              int32_t max_rows, Tally& tally, const char* name) {
  MlaWorkload workload(c, device);
  check_status(workload.run(nullptr), "run");
  check_run(workload, tolerance, max_rows, tally, name);
}

}  // namespace longdecode::gpu_test
