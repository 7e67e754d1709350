// Runs the op tests that it is linked with on the CUDA device: `PROGRAM [sm_80]`. sm_80: with the
// kernels for sm_80, whatever the GPU is, and what they serve. Says how many problems were served
// and why the others were refused. Exit status 77 (skipped) where there is no device, 1 where all
// were refused.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "longdecode/attention.h"
#include "tests/gpu/device_problem.h"
#include "tests/gpu/h200.h"
#include "tests/support/problem_spec.h"
#include "tests/support/run.h"

int main(int argc, char** argv) {
  namespace testing = longdecode::testing;
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = longdecode::detect_device(longdecode::DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  testing::set_test_device(*device);
  if (argc > 1 && std::string(argv[1]) == "sm_80") {
    testing::set_test_device(longdecode::as_sm80(*device));
    testing::set_only_shape(128, longdecode::DType::kBF16);
  }
  int num_served = 0, num_refused = 0;
  std::map<std::string, int> refusals;  // reason: problems
  testing::set_run_plan(
      [&](const longdecode::DecodeDesc& desc, const longdecode::DecodeArgs& args) {
        testing::Outputs outputs = testing::run_on_device(desc, args, testing::test_device());
        ++(outputs.status.ok() ? num_served : num_refused);
        if (!outputs.status.ok()) ++refusals[outputs.status.message()];
        return outputs;
      });
  const int result = RUN_ALL_TESTS();
  std::printf("%d problems served, %d refused\n", num_served, num_refused);
  for (const auto& [reason, count] : refusals) std::printf("%5d: %s\n", count, reason.c_str());
  const bool all_refused = num_refused > 0 && num_served == 0;
  return all_refused ? 1 : result;
}
