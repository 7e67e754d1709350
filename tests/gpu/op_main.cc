// Runs the op tests that it is linked with on the CUDA device. Exit status 77 (skipped) where there
// is none.
#include <gtest/gtest.h>

#include <cstdio>

#include "longdecode/attention.h"
#include "tests/gpu/device_problem.h"
#include "tests/support/run.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = longdecode::detect_device(longdecode::DeviceType::kCuda);
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.status().message().c_str());
    return 77;
  }
  longdecode::testing::set_run_plan(
      [&](const longdecode::DecodeDesc& desc, const longdecode::DecodeArgs& args) {
        return longdecode::testing::run_on_device(desc, args, *device);
      });
  return RUN_ALL_TESTS();
}
