// An MLA decode on the device with everything that is not its own poisoned, and its fp64
// reference on the host. Shared by the GPU test and the GPU benchmark.
#ifndef LONGDECODE_TESTS_GPU_MLA_WORKLOAD_H_
#define LONGDECODE_TESTS_GPU_MLA_WORKLOAD_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "longdecode/attention.h"
#include "tests/gpu/hash_values.h"

namespace longdecode::gpu_test {

// Prints the error and exits: for calls whose failure leaves nothing to test.
void check_cuda(cudaError_t error, const char* what);
void check_status(const Status& status, const char* what);

// The value that a 16-bit dtype stores for it.
float round_through(float value, DType dtype);

// Device memory of one allocation.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t num_bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void poison();  // every byte 0xff: NaN in each of our formats
  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

struct MlaCase {
  int32_t query_len = 1;
  int32_t num_heads = 16;
  int32_t page_size = 64;
  DType dtype = DType::kBF16;
  bool causal = true;
  bool batch_invariant = false;
  std::vector<int32_t> kv_lens;
  std::vector<int32_t> query_lens;  // empty: query_len each
  ValueRule rule;
  int64_t num_pages = 0;  // 0: as many as these lengths need and a few more
  int32_t page_stride_factor = 1;
  int32_t kv_row_padding = 0;  // elements between latent rows
  int32_t row_padding = 0;     // elements between query rows and between output rows
  int32_t max_batch = 0;       // of the descriptor; 0: the batch
  int32_t max_query_len = 0;   // of the descriptor; 0: query_len
  int64_t max_kv_len = 0;      // of the descriptor; 0: the longest
  std::string describe() const;
};

// What a mutant does wrong, applied to the reference.
enum class Mutant { kNone, kIgnoreQuery, kDropRope, kSkipLastPage, kDropSplit, kIgnoreCausal };

struct Row {
  int32_t sequence, token, head;
};

struct Reference {
  std::vector<double> o;  // [512]
  double lse;
};

class MlaWorkload {
 public:
  MlaWorkload(const MlaCase& c, const DeviceInfo& device);

  // Replaces lengths, table and pool contents in place, as a step of an engine would; the batch
  // stays.
  void refill(const MlaCase& c);
  Status run(cudaStream_t stream);
  void poison_output();
  void poison_input();  // Q and every page: NaN, until the next refill
  void fetch();         // output, lse and what lies behind the workspace to the host
  DecodeArgs& args() { return args_; }  // of the next run

  Reference reference(const Row& row, const std::vector<float>& keys, Mutant mutant) const;
  std::vector<float> keys(int32_t sequence) const;  // [kv_len, 576], as stored
  int32_t query_len_of(int32_t sequence) const;

  const float* output(const Row& row) const;  // [512] after fetch
  float lse(const Row& row) const;
  int64_t bytes() const;  // latent rows + Q + O
  const KernelChoice& kernel() const { return plan_->kernel(); }
  const std::vector<uint16_t>& raw_output() const { return raw_output_; }
  const std::vector<float>& raw_lse() const { return lse_; }
  bool canary_intact() const { return canary_intact_; }  // the run kept to its workspace
  const MlaCase& mla_case() const { return case_; }
  int32_t batch() const { return static_cast<int32_t>(case_.kv_lens.size()); }

 private:
  void place_pages();
  void* canary() const;

  MlaCase case_;
  DeviceInfo device_;
  DecodeDesc desc_;
  std::unique_ptr<DecodePlan> plan_;
  int64_t block_table_stride_ = 0, num_pages_ = 0;
  std::unique_ptr<DeviceBuffer> pool_, q_, o_, lse_buffer_, table_, kv_lens_, query_lens_,
      workspace_;
  DecodeArgs args_;
  std::vector<uint16_t> raw_output_;
  mutable std::vector<float> row_output_;
  std::vector<float> lse_;
  bool canary_intact_ = false;
};

}  // namespace longdecode::gpu_test

#endif  // LONGDECODE_TESTS_GPU_MLA_WORKLOAD_H_
