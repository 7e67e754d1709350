// A decode problem of the op tests on a CUDA device: what the host arrays hold is copied there, and
// everything else (pages of nobody, workspace, outputs) is poison.
#ifndef LONGDECODE_TESTS_GPU_DEVICE_PROBLEM_H_
#define LONGDECODE_TESTS_GPU_DEVICE_PROBLEM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "longdecode/attention.h"
#include "tests/support/run.h"

namespace longdecode::testing {

// The device of the op tests: set once, when the program starts.
void set_test_device(const DeviceInfo& device);
const DeviceInfo& test_device();

// Poisoned device memory between two canaries.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t num_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  template <typename T = uint8_t>
  T* data() const {
    return reinterpret_cast<T*>(memory_ + kCanaryBytes);
  }
  int64_t num_bytes() const { return num_bytes_; }
  bool canaries_intact() const;
  void copy_from(const void* host, int64_t num_bytes, int64_t offset = 0);
  void copy_to(void* host, int64_t num_bytes) const;

 private:
  static constexpr int64_t kCanaryBytes = 256;
  uint8_t* memory_ = nullptr;
  int64_t num_bytes_ = 0;
};

// `host` names outputs too, as run_with makes them.
class DeviceProblem {
 public:
  DeviceProblem(const DecodeDesc& desc, const DecodeArgs& host, const DeviceInfo& device);

  const Status& status() const { return status_; }  // of the plan
  // Replaces contents, lengths and tables; batch, query_len and pool sizes stay.
  void upload(const DecodeArgs& host);
  Status run(cudaStream_t stream);
  // Outputs to the host arrays of `host`.
  void download(const DecodeArgs& host) const;
  bool canaries_intact() const;

 private:
  void* add(int64_t num_bytes);
  void make_pools(const DecodeArgs& host);
  void make_outputs(const DecodeArgs& host);
  template <typename F>
  void for_each_output(const DecodeArgs& host, const F& visit) const;

  DecodeDesc desc_;
  DecodeArgs args_;
  Status status_;
  std::unique_ptr<DecodePlan> plan_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

// A run that is captured in a CUDA Graph once and replayed after contents, lengths and tables have
// changed.
class CapturedRun {
 public:
  explicit CapturedRun(const DeviceInfo& device);
  ~CapturedRun();
  CapturedRun(const CapturedRun&) = delete;
  CapturedRun& operator=(const CapturedRun&) = delete;

  // The first call captures, on pools as large as those of `capacity`; each one uploads `host`,
  // replays and downloads.
  Status run(const DecodeDesc& desc, const DecodeArgs& host, const KvLayerView& capacity);

 private:
  Status capture(const DecodeDesc& desc, const DecodeArgs& sized);

  DeviceInfo device_;
  std::unique_ptr<DeviceProblem> problem_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

// Runs a problem on the device, twice: the second run, on the used workspace, must give the same
// bits. Outputs say what the kernel's arithmetic is (16-bit weights).
Outputs run_on_device(const DecodeDesc& desc, const DecodeArgs& args, const DeviceInfo& device);

// weight_unit and weight_floor of a kernel that rounds its softmax weights to dtype.
void set_weight_rounding(DType dtype, Outputs* outputs);

}  // namespace longdecode::testing

#endif  // LONGDECODE_TESTS_GPU_DEVICE_PROBLEM_H_
